use crate::support::{Scratch, chmod, deep, is_root, write};
use cofferdam_tree::disk_usage;
use rustix::fd::AsFd;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

#[test]
fn hard_links_count_once_and_holes_not_at_all() {
    let scratch = Scratch::new();
    write(scratch.join("d/f"), &"x".repeat(100_000));
    fs::hard_link(scratch.join("d/f"), scratch.join("g")).unwrap();
    fs::File::create(scratch.join("hole")).unwrap().set_len(1 << 30).unwrap();
    symlink("/", scratch.join("root")).unwrap();
    let blocks = |name: &str| fs::symlink_metadata(scratch.join(name)).unwrap().blocks() * 512;
    let usage = disk_usage(scratch.fd().as_fd()).unwrap();
    assert_eq!(usage.entries, 5);
    assert_eq!(usage.bytes, ["d", "g", "hole", "root"].map(blocks).iter().sum::<u64>());
    assert_eq!(usage.unreadable, 0);
}

#[test]
fn what_is_unreadable_is_counted_as_such() {
    let scratch = Scratch::new();
    write(scratch.join("work/work/f"), "x");
    chmod(scratch.join("work/work"), 0);
    let usage = disk_usage(scratch.fd().as_fd()).unwrap();
    if is_root() {
        assert_eq!((usage.entries, usage.unreadable), (3, 0));
    } else {
        assert_eq!((usage.entries, usage.unreadable), (2, 1));
    }
}

#[test]
fn deeper_than_a_path_can_be() {
    let scratch = Scratch::new();
    deep(scratch.path(), 3000);
    assert_eq!(disk_usage(scratch.fd().as_fd()).unwrap().entries, 3000);
}
