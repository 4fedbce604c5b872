use crate::support::{
    Scratch, chmod, deep, in_mount_namespace, is_root, open, os, shell, walk, walk_with, write,
};
use cofferdam_tree::{Cap, Caps, DeviceKind, FileTime, Found, Visit, WalkError, Walker};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;

const NO_CAPS: Caps =
    Caps { entries: u64::MAX, bytes: u64::MAX, depth: u32::MAX, name_len: u32::MAX };

fn only(scratch: &Scratch) -> Found {
    let mut seen = walk(scratch.path(), Caps::default()).unwrap();
    assert_eq!(seen.len(), 1, "{seen:?}");
    seen.remove(0).1
}

#[test]
fn file() {
    let scratch = Scratch::new();
    write(scratch.join("f"), "abc");
    assert_eq!(only(&scratch), Found::File { executable: false, size: 3 });
    chmod(scratch.join("f"), 0o4755);
    assert_eq!(only(&scratch), Found::File { executable: true, size: 3 });
}

#[test]
fn mode_bits_and_times_are_reported() {
    let scratch = Scratch::new();
    write(scratch.join("f"), "");
    chmod(scratch.join("f"), 0o6754);
    shell("touch -d '1960-01-01T00:00:00.5Z' f", scratch.path());
    walk_with(scratch.path(), Caps::default(), |entry| {
        assert_eq!(entry.mode, 0o6754);
        assert_eq!(entry.mtime, FileTime { sec: -315_619_200, nsec: 500_000_000 });
        assert_eq!(entry.uid, rustix::process::geteuid().as_raw());
        Ok(())
    })
    .unwrap();
}

#[test]
fn hard_link() {
    let scratch = Scratch::new();
    write(scratch.join("a"), "x");
    fs::hard_link(scratch.join("a"), scratch.join("b")).unwrap();
    let seen = walk(scratch.path(), Caps::default()).unwrap();
    let files: Vec<_> = seen
        .iter()
        .map(|(_, found)| match found {
            Found::HardLink { links: 2, size: 1, file, executable: false } => *file,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(files[0], files[1]);
}

#[test]
fn directory_and_binpash_try_163_opaque_is_exactly_y() {
    let scratch = Scratch::new();
    for (name, value) in
        [("no", None), ("x", Some("x")), ("y", Some("y")), ("yes", Some("yes")), ("z", Some(""))]
    {
        fs::create_dir(scratch.join(name)).unwrap();
        if let Some(value) = value {
            rustix::fs::setxattr(
                scratch.join(name),
                "user.overlay.opaque",
                value.as_bytes(),
                XattrFlags::empty(),
            )
            .unwrap();
        }
    }
    let seen = walk(scratch.path(), Caps::default()).unwrap();
    let opaque: Vec<_> = seen
        .iter()
        .filter(|(_, found)| matches!(found, Found::Dir { opaque: true }))
        .map(|(path, _)| path.as_slice())
        .collect();
    assert_eq!(opaque, [b"y"]);
    assert_eq!(seen.len(), 5);
}

#[test]
fn symlink_is_reported_and_not_followed() {
    let scratch = Scratch::new();
    symlink(os(b"/etc/\xff\n"), scratch.join("l")).unwrap();
    assert_eq!(only(&scratch), Found::Symlink { target: b"/etc/\xff\n".to_vec() });
}

#[test]
fn whiteout() {
    let scratch = Scratch::new();
    rustix::fs::mknodat(CWD, scratch.join("w"), FileType::CharacterDevice, Mode::empty(), 0)
        .unwrap();
    assert_eq!(only(&scratch), Found::Whiteout);
}

#[test]
fn fifo() {
    let scratch = Scratch::new();
    rustix::fs::mkfifoat(CWD, scratch.join("main.rs"), Mode::RWXU).unwrap();
    assert_eq!(only(&scratch), Found::Fifo);
}

#[test]
fn socket() {
    let scratch = Scratch::new();
    let _socket = std::os::unix::net::UnixListener::bind(scratch.join("s")).unwrap();
    assert_eq!(only(&scratch), Found::Socket);
}

#[test]
fn device() {
    let scratch = Scratch::new();
    if is_root() {
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, scratch.join("null"), FileType::CharacterDevice, Mode::RWXU, null)
            .unwrap();
        assert_eq!(
            only(&scratch),
            Found::Device { kind: DeviceKind::Character, major: 1, minor: 3 }
        );
        return;
    }
    // An ordinary user can't make one, so one that exists is looked at.
    let mut seen = None;
    let walked = Walker::new(open("/dev".as_ref()), NO_CAPS).walk::<WalkError>(&mut |entry| {
        if entry.name == b"full" {
            seen = Some(entry.found.clone());
        }
        Ok(Visit::Skip)
    });
    assert!(
        seen == Some(Found::Device { kind: DeviceKind::Character, major: 1, minor: 7 })
            || matches!(walked, Err(WalkError::MountPoint { .. } | WalkError::Unreadable { .. }))
    );
}

#[test]
fn order_is_by_bytes_with_a_directory_before_its_content() {
    let scratch = Scratch::new();
    for path in ["b/2", "b/1", "a", "b-", "B"] {
        write(scratch.join(path), "");
    }
    let paths: Vec<_> =
        walk(scratch.path(), NO_CAPS).unwrap().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, [b"B".as_slice(), b"a", b"b", b"b/1", b"b/2", b"b-"]);
}

#[test]
fn skip_leaves_out_the_content() {
    let scratch = Scratch::new();
    write(scratch.join("d/f"), "");
    let totals =
        Walker::new(scratch.fd(), NO_CAPS).walk::<WalkError>(&mut |_| Ok(Visit::Skip)).unwrap();
    assert_eq!(totals.entries, 1);
}

#[test]
fn worktrunk_3487_newline_and_invalid_names() {
    let scratch = Scratch::new();
    let mut wanted = [
        b"a\nb".to_vec(),
        b"\xff\xfe".to_vec(),
        "é\u{301}".into(),
        b"\"q\\".to_vec(),
        b" ".to_vec(),
    ];
    wanted.sort();
    for name in &wanted {
        fs::write(scratch.join(os(name)), "x").unwrap();
    }
    let paths: Vec<_> =
        walk(scratch.path(), NO_CAPS).unwrap().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, wanted);
}

#[test]
fn a_fifo_in_a_files_place_never_blocks() {
    let scratch = Scratch::new();
    let path = scratch.join("main.rs");
    write(&path, "fn main() {}");
    let result = walk_with(scratch.path(), NO_CAPS, |entry| {
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        entry.open_file().map(|_| ())
    });
    assert!(matches!(result, Err(WalkError::Changed { .. })), "{result:?}");
    let result = walk_with(scratch.path(), NO_CAPS, |entry| entry.open_file().map(|_| ()));
    assert!(matches!(result, Err(WalkError::NotAFile { .. })), "{result:?}");
}

#[test]
fn a_symlink_or_another_file_in_a_files_place_is_not_opened() {
    let scratch = Scratch::new();
    let path = scratch.join("f");
    for swap in [
        "ln -s /etc/passwd f",
        "echo other > g; mv g f",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"f\")' || mkfifo f",
    ] {
        let _ = fs::remove_file(&path);
        write(&path, "x");
        let result = walk_with(scratch.path(), NO_CAPS, |entry| {
            if swap.starts_with("echo") {
                shell(swap, scratch.path());
            } else {
                fs::remove_file(&path).unwrap();
                shell(swap, scratch.path());
            }
            entry.open_file().map(|_| ())
        });
        assert!(matches!(result, Err(WalkError::Changed { .. })), "{swap}: {result:?}");
    }
}

#[test]
fn files_and_hard_links_can_be_read() {
    let scratch = Scratch::new();
    write(scratch.join("d/f"), "abc");
    fs::hard_link(scratch.join("d/f"), scratch.join("d/g")).unwrap();
    let mut texts = Vec::new();
    walk_with(scratch.path(), NO_CAPS, |entry| {
        if !matches!(entry.found, Found::Dir { .. }) {
            let mut text = String::new();
            entry.open_file()?.read_to_string(&mut text).unwrap();
            texts.push(text);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(texts, ["abc", "abc"]);
}

#[test]
fn factory_961_symlink_hop() {
    let scratch = Scratch::new();
    symlink("/proc/self", scratch.join("hop")).unwrap();
    symlink("/", scratch.join("root")).unwrap();
    symlink("..", scratch.join("up")).unwrap();
    symlink("loop", scratch.join("loop")).unwrap();
    symlink("/proc/self/fd/0", scratch.join("magic")).unwrap();
    let seen = walk(scratch.path(), NO_CAPS).unwrap();
    assert_eq!(seen.len(), 5);
    assert!(seen.iter().all(|(_, found)| matches!(found, Found::Symlink { .. })));
}

#[test]
fn a_directory_swapped_for_a_symlink_is_not_entered() {
    let scratch = Scratch::new();
    write(scratch.join("out/secret"), "");
    write(scratch.join("in/a"), "");
    write(scratch.join("in/b/inner"), "");
    let mut paths = Vec::new();
    let result = walk_with(&scratch.join("in"), NO_CAPS, |entry| {
        paths.push(entry.path.to_vec());
        if entry.path == b"a" {
            fs::rename(scratch.join("in/b"), scratch.join("moved")).unwrap();
            symlink(scratch.join("out"), scratch.join("in/b")).unwrap();
        }
        Ok(())
    });
    // Swapped before it was looked at: it is a symlink.
    assert!(matches!(result.unwrap()[1].1, Found::Symlink { .. }));
    assert_eq!(paths, [b"a", b"b"]);
}

#[test]
fn a_directory_swapped_after_it_was_looked_at_is_the_one_looked_at() {
    let scratch = Scratch::new();
    write(scratch.join("out/secret"), "");
    write(scratch.join("in/b/inner"), "");
    let seen = walk_with(&scratch.join("in"), NO_CAPS, |entry| {
        if entry.path == b"b" {
            fs::rename(scratch.join("in/b"), scratch.join("moved")).unwrap();
            symlink(scratch.join("out"), scratch.join("in/b")).unwrap();
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(seen[1].0, b"b/inner");
}

#[test]
fn a_root_opened_as_a_path_can_be_walked_twice() {
    let scratch = Scratch::new();
    write(scratch.join("f"), "");
    let flags =
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let mut walker =
        Walker::new(rustix::fs::open(scratch.path(), flags, Mode::empty()).unwrap(), NO_CAPS);
    for _ in 0..2 {
        assert_eq!(walker.walk::<WalkError>(&mut |_| Ok(Visit::Descend)).unwrap().entries, 1);
    }
}

#[test]
fn caps_name_what_was_passed_and_where() {
    let scratch = Scratch::new();
    write(scratch.join("a/b/c"), "12345");
    write(scratch.join("a/long"), "12345");
    let check = |caps: Caps, wanted: Cap, at: &[u8]| match walk(scratch.path(), caps) {
        Err(WalkError::TooMany { cap, path, .. }) => {
            assert_eq!((cap, path.as_bytes()), (wanted, at))
        }
        other => panic!("{other:?}"),
    };
    check(Caps { entries: 3, ..NO_CAPS }, Cap::Entries, b"a/b");
    check(Caps { bytes: 9, ..NO_CAPS }, Cap::Bytes, b"a/long");
    check(Caps { depth: 2, ..NO_CAPS }, Cap::Depth, b"a/b/c");
    check(Caps { name_len: 3, ..NO_CAPS }, Cap::NameLen, b"a");
    let totals = Walker::new(scratch.fd(), Caps { entries: 4, bytes: 10, depth: 3, name_len: 4 })
        .walk::<WalkError>(&mut |_| Ok(Visit::Descend))
        .unwrap();
    assert_eq!((totals.entries, totals.bytes), (4, 10));
}

#[test]
fn a_sparse_file_counts_what_reading_it_would_give() {
    let scratch = Scratch::new();
    fs::File::create(scratch.join("big")).unwrap().set_len(1 << 40).unwrap();
    let caps = Caps { bytes: 1 << 39, ..NO_CAPS };
    assert!(matches!(walk(scratch.path(), caps), Err(WalkError::TooMany { cap: Cap::Bytes, .. })));
}

#[test]
fn feasibility_c5_mode_000_is_unreadable_without_the_capability() {
    let scratch = Scratch::new();
    write(scratch.join("d/f"), "");
    chmod(scratch.join("d"), 0);
    let result = walk(scratch.path(), NO_CAPS);
    if is_root() {
        assert_eq!(result.unwrap().len(), 2);
    } else {
        assert!(matches!(result, Err(WalkError::Unreadable { path }) if path.as_bytes() == b"d"));
    }
    chmod(scratch.join("d"), 0o755);
    chmod(scratch.join("d/f"), 0);
    let result = walk_with(scratch.path(), NO_CAPS, |entry| match entry.found {
        Found::File { .. } => entry.open_file().map(|_| ()),
        _ => Ok(()),
    });
    assert!(is_root() && result.is_ok() || matches!(result, Err(WalkError::Unreadable { .. })));
}

#[test]
fn three_thousand_levels_with_files_on_each_way_back() {
    let scratch = Scratch::new();
    let bottom = deep(scratch.path(), 3000);
    rustix::fs::mkdirat(&bottom, "e", Mode::RWXU).unwrap();
    // Visited on the way back up, so that directories have to be open again.
    let mut at = scratch.fd();
    for level in 0..3000 {
        if level % 10 == 0 {
            rustix::fs::mkdirat(&at, "z", Mode::RWXU).unwrap();
        }
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let mut most = 0;
    let mut entries = 0;
    Walker::new(scratch.fd(), NO_CAPS)
        .walk::<WalkError>(&mut |entry| {
            entries += 1;
            // A descriptor's number is the lowest free one: a bound on how many are open, tests beside this one included.
            most = most.max(std::os::fd::AsRawFd::as_raw_fd(&entry.dir));
            Ok(Visit::Descend)
        })
        .unwrap();
    assert_eq!(entries, 3301);
    assert!(most < 512, "{most} descriptors");
    let caps = Caps { depth: 1024, ..NO_CAPS };
    assert!(matches!(walk(scratch.path(), caps), Err(WalkError::TooMany { cap: Cap::Depth, .. })));
}

#[test]
fn a_deep_tree_moved_meanwhile_is_noticed() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("d")).unwrap();
    deep(&scratch.join("d"), 100);
    write(scratch.join("other/d/d"), "");
    let mut depth = 0;
    let result = walk_with(scratch.path(), NO_CAPS, |entry| {
        depth += 1;
        if entry.path.len() == 199 {
            fs::rename(scratch.join("d/d"), scratch.join("moved")).unwrap();
            fs::create_dir_all(scratch.join("d/d/d/d")).unwrap();
        }
        Ok(())
    });
    assert!(matches!(result, Err(WalkError::Changed { .. })), "{result:?}");
}

#[test]
#[ignore = "needs a mount namespace; run by the next test"]
fn mounts() {
    let scratch = Scratch::new();
    write(scratch.join("m/hidden"), "");
    write(scratch.join("f"), "");
    shell("mount -t tmpfs none m", scratch.path());
    assert!(
        matches!(walk(scratch.path(), NO_CAPS), Err(WalkError::MountPoint { path }) if path.as_bytes() == b"m")
    );
    shell("umount m; mkdir other; mount --bind other m", scratch.path());
    assert!(
        matches!(walk(scratch.path(), NO_CAPS), Err(WalkError::MountPoint { path }) if path.as_bytes() == b"m")
    );
    shell("umount m; mount --bind /etc/passwd f", scratch.path());
    assert!(
        matches!(walk(scratch.path(), NO_CAPS), Err(WalkError::MountPoint { path }) if path.as_bytes() == b"f")
    );
    shell("umount f", scratch.path());
}

#[test]
fn mount_points_are_named_and_not_crossed() {
    in_mount_namespace("walk::mounts");
}
