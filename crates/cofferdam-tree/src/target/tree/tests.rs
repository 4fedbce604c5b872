use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use super::*;
use crate::stat::FileTime;
use crate::target::Recovered;

const STAGED: &str = ".dam-task-1";
const KEEP: Keep = Keep { owners: Owners::Kept, set_id: SetId::Dropped, sync: false };

struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        Bed { dir: tempfile::tempdir().expect("temporary directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A directory with these files.
    fn put(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
        put(&self.path(name), files);
        self.path(name)
    }

    fn target(&self, name: &str) -> TreeTarget {
        TreeTarget::open(&self.path(name)).expect("target")
    }

    /// The result of a task, staged as [`STAGED`].
    fn stage(&self, target: &TreeTarget, files: &[(&str, &str)]) -> TreeFingerprint {
        let result = tempfile::tempdir().expect("temporary directory");
        put(result.path(), files);
        stage(target, result.path()).expect("stage")
    }

    /// The target `site`, whose file `a` says so; in the second way it is a link to `first`.
    fn site(&self, way: Way, text: &str) -> TreeTarget {
        match way {
            Way::Exchange => drop(self.put("site", &[("a", text)])),
            Way::Link => {
                self.put("first", &[("a", text)]);
                symlink("first", self.path("site")).expect("link");
            }
        }
        let target = self.target("site");
        assert_eq!(target.way(), way);
        target
    }

    fn names(&self) -> Vec<String> {
        let list = std::fs::read_dir(self.dir.path()).expect("list");
        let mut names: Vec<String> = list
            .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }
}

fn put(dir: &Path, files: &[(&str, &str)]) {
    std::fs::create_dir_all(dir).expect("mkdir");
    for (name, content) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        std::fs::write(path, content).expect("write");
    }
}

fn open(dir: &Path) -> OwnedFd {
    File::open(dir).expect("open").into()
}

fn stage(target: &TreeTarget, result: &Path) -> Result<TreeFingerprint, TargetError> {
    let old = target.look(&mut |_| true).expect("look");
    let result = open(result);
    let tree = Tree { dir: result.as_fd(), keep: KEEP, like_old: false, umask: 0o027 };
    target.stage(STAGED.as_ref(), tree, old.as_ref(), &mut |_| true)
}

fn now(target: &TreeTarget) -> Option<TreeFingerprint> {
    target.look(&mut |_| true).expect("look").map(|seen| seen.fingerprint)
}

fn of(dir: &Path) -> TreeFingerprint {
    TreeFingerprint::of(open(dir).as_fd(), &mut |_| true).expect("fingerprint")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("read")
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().expect("stat").mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, name, value, flags).expect("CAN NOT RUN HERE without attributes");
}

fn attribute(path: &Path, name: &str) -> Vec<u8> {
    let mut value = vec![0; 256];
    let length = rustix::fs::getxattr(path, name, &mut value).expect("attribute");
    value.truncate(length);
    value
}

fn drifted(result: Result<(), TargetError>, how: &str) {
    let error = result.expect_err("drift");
    assert!(matches!(&error, TargetError::Drifted { .. }), "{error:?}");
    assert!(error.to_string().ends_with(how), "{error}");
}

fn copy(from: &Path, to: &Path, keep: Keep) -> Result<Totals, TreeError> {
    let (parent, name) = (to.parent().expect("parent"), to.file_name().expect("name"));
    copy_tree(open(from).as_fd(), open(parent).as_fd(), name, keep, &mut |_| true)
}

const CHANGED: &str = "has changed since the task began";

#[test]
fn a_directory_is_replaced_as_one_step_and_kept_as_a_version() {
    let bed = Bed::new();
    let target = bed.site(Way::Exchange, "old");
    set_mode(&bed.path("site"), 0o2750);
    set_attribute(&bed.path("site"), "user.note", b"kept");
    let old = now(&target).expect("there");
    let new = bed.stage(&target, &[("a", "new"), ("below/b", "new")]);
    assert_eq!((now(&target).as_ref(), old.entries, old.bytes), (Some(&old), 1, 3));
    target.commit(STAGED.as_ref(), Some(&old), &new).expect("commit");
    assert_eq!((now(&target).as_ref(), new.entries, new.bytes), (Some(&new), 3, 6));
    assert_eq!(mode(&bed.path("site")), 0o2750);
    assert_eq!(attribute(&bed.path("site"), "user.note"), b"kept");
    assert_eq!(bed.names(), [".site.dam-version-1", "site"]);
    assert_eq!(of(&bed.path(".site.dam-version-1")), old);
}

#[test]
fn a_directory_is_made_where_nothing_was() {
    let bed = Bed::new();
    let target = bed.target("site");
    assert_eq!(now(&target), None);
    let new = bed.stage(&target, &[("a", "new")]);
    target.commit(STAGED.as_ref(), None, &new).expect("commit");
    assert_eq!((now(&target), mode(&bed.path("site"))), (Some(new), 0o750));
    assert_eq!(bed.names(), ["site"]);
}

#[test]
fn a_creation_replaces_nothing_whatever_comes_in_between() {
    let bed = Bed::new();
    let target = bed.target("site");
    let new = bed.stage(&target, &[("a", "new")]);
    let appeared = "has appeared since the task began";
    bed.put("site", &[]);
    drifted(target.create(STAGED.as_ref()), appeared);
    drifted(target.commit(STAGED.as_ref(), None, &new), appeared);
    std::fs::remove_dir(bed.path("site")).expect("rmdir");
    symlink("nowhere", bed.path("site")).expect("link");
    drifted(target.create(STAGED.as_ref()), appeared);
    assert_eq!(bed.names(), [STAGED, "site"]);
}

#[test]
fn a_link_is_replaced_and_what_it_led_to_stays() {
    let bed = Bed::new();
    let target = bed.site(Way::Link, "1");
    for (number, text) in ["2", "3", "4", "5", "6"].iter().enumerate() {
        let old = now(&target).expect("there");
        let new = bed.stage(&target, &[("a", text)]);
        target.commit(STAGED.as_ref(), Some(&old), &new).expect("commit");
        assert_eq!(now(&target), Some(new));
        assert_eq!(target.versions().expect("versions").len(), number);
    }
    target.prune().expect("prune");
    let live = std::fs::read_link(bed.path("site")).expect("link");
    assert_eq!(live, Path::new(".site.dam-version-5"));
    let names = ["first", "site"].map(str::to_owned);
    let versions = (2..=5).map(|number| format!(".site.dam-version-{number}"));
    assert_eq!(bed.names(), versions.chain(names).collect::<Vec<_>>());
    assert_eq!(read(&bed.path("first/a")), "1");
    // However it leads there, what it leads to is no version, nor what it leads into.
    std::fs::create_dir(bed.path(".site.dam-version-2/below")).expect("mkdir");
    for to in [bed.path(".site.dam-version-2"), ".site.dam-version-2/below".into()] {
        std::fs::remove_file(bed.path("site")).expect("remove");
        symlink(to, bed.path("site")).expect("link");
        let numbers: Vec<_> =
            target.versions().expect("versions").iter().map(|v| v.number).collect();
        assert_eq!(numbers, [3, 4, 5]);
    }
}

#[test]
fn every_difference_is_in_one_of_the_hashes_but_times_and_links() {
    let bed = Bed::new();
    let from = bed.path("from");
    let lay = || {
        let _ = std::fs::remove_dir_all(&from);
        put(&from, &[("a", "text"), ("b", "text"), ("below/c", "more")]);
        symlink("a", from.join("link")).expect("link");
        set_attribute(&from.join("a"), "user.note", b"one");
        of(&from)
    };
    let differs = |what: &str, (content, attributes): (bool, bool), change: &dyn Fn()| {
        let before = lay();
        change();
        let after = of(&from);
        assert_eq!(before.content != after.content, content, "{what}");
        assert_eq!(before.attributes != after.attributes, attributes, "{what}");
    };
    let (rename, remove) = (std::fs::rename::<PathBuf, PathBuf>, std::fs::remove_file::<PathBuf>);
    differs("nothing", (false, false), &|| {});
    differs("name", (true, true), &|| rename(from.join("b"), from.join("bb")).expect("rename"));
    differs("place", (true, true), &|| {
        rename(from.join("b"), from.join("below/b")).expect("rename")
    });
    differs("content", (true, false), &|| put(&from, &[("b", "odds")]));
    differs("mode", (true, false), &|| set_mode(&from.join("b"), 0o600));
    differs("set-id", (false, true), &|| set_mode(&from.join("b"), mode(&from.join("b")) | 0o4000));
    differs("attribute", (false, true), &|| set_attribute(&from.join("a"), "user.note", b"two"));
    differs("link", (true, false), &|| {
        remove(from.join("link")).expect("remove");
        symlink("b", from.join("link")).expect("link");
    });
    differs("type", (true, false), &|| {
        remove(from.join("link")).expect("remove");
        put(&from, &[("link", "a")]);
    });
    differs("time", (false, false), &|| {
        let times = times_of(Duration::from_secs(5));
        rustix::fs::utimensat(rustix::fs::CWD, from.join("b"), &times, AtFlags::empty())
            .expect("times");
    });
    differs("hard link", (false, true), &|| {
        remove(from.join("b")).expect("remove");
        std::fs::hard_link(from.join("a"), from.join("b")).expect("link");
    });
    if rustix::process::geteuid().is_root() {
        let chown =
            |uid, gid| std::os::unix::fs::lchown(from.join("link"), uid, gid).expect("chown");
        differs("user", (false, true), &|| chown(Some(5), None));
        differs("group", (false, true), &|| chown(None, Some(5)));
    }
}

#[test]
fn what_changed_meanwhile_is_not_replaced() {
    for way in [Way::Exchange, Way::Link] {
        let bed = Bed::new();
        let target = bed.site(way, "old");
        let file = bed.path("site/a");
        let old = now(&target).expect("there");
        let new = bed.stage(&target, &[("a", "new")]);
        let refused = |how: &str, then: &dyn Fn()| {
            then();
            let before = now(&target);
            drifted(target.commit(STAGED.as_ref(), Some(&old), &new), how);
            assert_eq!(now(&target), before);
            assert_eq!(of(&bed.path(STAGED)), new);
        };
        // Of the same size, with the same time.
        refused(CHANGED, &|| {
            let time = file.metadata().and_then(|meta| meta.modified()).expect("time");
            std::fs::write(&file, "odd").expect("write");
            let file = File::options().write(true).open(&file).expect("open");
            file.set_modified(time).expect("touch");
        });
        let also: [(&str, &dyn Fn()); 6] = [
            ("mode", &|| set_mode(&file, 0o600)),
            ("attribute", &|| set_attribute(&file, "user.note", b"theirs")),
            ("name", &|| std::fs::write(bed.path("site/b"), "").expect("write")),
            ("directory", &|| std::fs::create_dir(bed.path("site/b")).expect("mkdir")),
            ("link", &|| symlink("a", bed.path("site/b")).expect("link")),
            ("mode of the top", &|| set_mode(&bed.path("site/."), 0o711)),
        ];
        for (what, change) in also {
            std::fs::remove_dir_all(bed.path("site/.")).ok();
            put(&bed.path("site/."), &[("a", "old")]);
            set_mode(&bed.path("site/."), 0o755);
            assert_eq!(now(&target), Some(old.clone()), "before {what}");
            refused(CHANGED, change);
        }
        refused("has gone since the task began", &|| {
            std::fs::rename(bed.path("site"), bed.path("elsewhere")).expect("rename");
        });
    }
}

#[test]
fn what_is_written_after_the_comparison_comes_back() {
    let bed = Bed::new();
    let target = bed.site(Way::Exchange, "old");
    let old = now(&target).expect("there");
    let new = bed.stage(&target, &[("a", "new")]);
    std::fs::write(bed.path("site/a"), "odd").expect("write");
    drifted(target.exchange(STAGED.as_ref(), &old, &new), CHANGED);
    assert_eq!(read(&bed.path("site/a")), "odd");
    assert_eq!(of(&bed.path(STAGED)), new);
    assert_eq!(bed.names(), [STAGED, "site"]);
    // Something else is in its place altogether.
    std::fs::remove_dir_all(bed.path("site")).expect("remove");
    std::fs::write(bed.path("site"), "a file").expect("write");
    drifted(target.exchange(STAGED.as_ref(), &old, &new), CHANGED);
    assert_eq!(read(&bed.path("site")), "a file");
}

#[test]
fn what_is_written_into_the_new_tree_before_it_goes_back_is_kept() {
    let bed = Bed::new();
    let target = bed.site(Way::Exchange, "odd");
    let new = bed.stage(&target, &[("a", "new")]);
    target.swap(STAGED.as_ref(), &target.name).expect("swap");
    std::fs::write(bed.path("site/b"), "theirs").expect("write");
    target.exchange_back(STAGED.as_ref(), &new).expect("back");
    assert_eq!(read(&bed.path("site/a")), "odd");
    assert_eq!(read(&bed.path(".site.dam-version-1/b")), "theirs");
}

#[test]
fn a_link_goes_back_when_what_it_led_to_or_it_itself_was_changed() {
    let bed = Bed::new();
    let target = bed.site(Way::Link, "old");
    let new = bed.stage(&target, &[("a", "new")]);
    let old = target.look(&mut |_| true).expect("look").expect("there");
    let link = target.link().expect("look").expect("a link");
    std::fs::write(bed.path("first/a"), "odd").expect("write");
    drifted(target.relink(STAGED.as_ref(), &link, &old, &new), CHANGED);
    let is_back = |to: &str| {
        assert_eq!(std::fs::read_link(bed.path("site")).expect("link"), Path::new(to));
        assert_eq!(of(&bed.path(STAGED)), new);
    };
    is_back("first");
    let old = target.look(&mut |_| true).expect("look").expect("there");
    std::fs::create_dir(bed.path("second")).expect("mkdir");
    symlink("second", bed.path("link")).expect("link");
    std::fs::rename(bed.path("link"), bed.path("site")).expect("rename");
    drifted(target.relink(STAGED.as_ref(), &link, &old, &new), CHANGED);
    is_back("second");
    assert_eq!(bed.names(), [STAGED, "first", "second", "site"]);
    target.unstage(STAGED.as_ref()).expect("unstage");
    assert_eq!(bed.names(), ["first", "second", "site"]);
}

#[test]
fn a_reader_below_one_descriptor_sees_one_version() {
    let bed = Bed::new();
    let target = bed.put("site", &[("a", "0"), ("below/b", "0")]);
    let done = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = HashMap::<String, u64>::new();
            while !done.load(Ordering::Relaxed) {
                let dir = open(&target);
                let text = |name: &str| {
                    let file = openat(&dir, name, OFlags::RDONLY, Mode::empty());
                    let file = File::from(file.expect("it is always there"));
                    std::io::read_to_string(file).expect("read")
                };
                let first = text("a");
                std::thread::yield_now();
                assert_eq!(first, text("below/b"));
                *seen.entry(first).or_default() += 1;
            }
            seen.len()
        });
        let target = bed.target("site");
        for number in 1..=300 {
            let old = now(&target).expect("there");
            let text = number.to_string();
            let new = bed.stage(&target, &[("a", &text), ("below/b", &text)]);
            target.commit(STAGED.as_ref(), Some(&old), &new).expect("commit");
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("reader")
    });
    assert!(reads > 1, "the reader saw {reads} versions");
}

#[test]
fn the_last_three_versions_stay() {
    let bed = Bed::new();
    let target = bed.site(Way::Exchange, "0");
    // Names that are not ours, and what an interrupted removal left.
    bed.put(".site.dam-version-07", &[]);
    bed.put(".site.dam-version-x", &[]);
    bed.put(".site.dam-version-18446744073709551615", &[]);
    bed.put(".site.dam-gone-half", &[("below/a", "")]);
    for number in 1..=6 {
        let old = now(&target).expect("there");
        let text = number.to_string();
        bed.stage(&target, &[("a", &text), ("locked/b", "")]);
        // Such as nobody may write to, with a link that leads out.
        symlink(bed.dir.path(), bed.path(STAGED).join("locked/out")).expect("link");
        set_mode(&bed.path(STAGED).join("locked"), 0o555);
        let new = of(&bed.path(STAGED));
        target.commit(STAGED.as_ref(), Some(&old), &new).expect("commit");
        target.prune().expect("prune");
    }
    let versions = target.versions().expect("versions");
    let texts: Vec<_> = versions.iter().map(|version| read(&version.path.join("a"))).collect();
    assert_eq!(texts, ["3", "4", "5"]);
    assert_eq!(versions.iter().map(|version| version.number).collect::<Vec<_>>(), [4, 5, 6]);
    assert_eq!(
        bed.names(),
        [
            ".site.dam-version-07",
            ".site.dam-version-18446744073709551615",
            ".site.dam-version-4",
            ".site.dam-version-5",
            ".site.dam-version-6",
            ".site.dam-version-x",
            "site"
        ]
    );
    // One of them takes the place again.
    let (old, new) = (now(&target).expect("there"), of(&versions[0].path));
    target.commit(&versions[0].name, Some(&old), &new).expect("commit");
    assert_eq!(read(&bed.path("site/a")), "3");
    assert_eq!(target.versions().expect("versions").last().map(|version| version.number), Some(7));
}

#[test]
fn a_copy_is_as_the_original() {
    let bed = Bed::new();
    let from = bed.put("from", &[("a", "text"), ("below/b", "#!/bin/sh"), ("locked/c", "")]);
    std::fs::hard_link(from.join("a"), from.join("below/z")).expect("link");
    std::fs::hard_link(from.join("a"), bed.path("outside")).expect("link");
    symlink("../../nowhere", from.join("below/link")).expect("link");
    let sparse = File::create(from.join("sparse")).expect("make");
    sparse.set_len(1 << 26).expect("extend");
    sparse.write_all_at(b"end", (1 << 26) - 3).expect("write");
    set_attribute(&from.join("a"), "user.note", b"of a file");
    set_attribute(&from.join("below"), "user.note", b"of a directory");
    // Version 2; owner rwx, user 1 rw, group r, mask rw, others none (acl(5)).
    let list = access_list(&[(1, 7, !0), (2, 6, 1), (4, 4, !0), (16, 6, !0), (32, 0, !0)]);
    set_attribute(&from.join("below"), "system.posix_acl_default", &list);
    set_attribute(&from.join("below/b"), "system.posix_acl_access", &list);
    set_mode(&from.join("below/b"), 0o6751);
    set_mode(&from.join("locked"), 0o1555);
    let times = times_of(Duration::from_secs(86_400) + Duration::from_nanos(7));
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    for name in ["below/link", "below/b", "below", "locked", "."] {
        rustix::fs::utimensat(rustix::fs::CWD, from.join(name), &times, nofollow).expect("times");
    }
    // What the parent hands down does not come into it.
    std::fs::create_dir(bed.path("parent")).expect("mkdir");
    set_attribute(&bed.path("parent"), "system.posix_acl_default", &list);

    for sync in [false, true] {
        let to = bed.path("parent").join(format!("to-{sync}"));
        let keep = Keep { owners: Owners::Kept, set_id: SetId::Kept, sync };
        let totals = copy(&from, &to, keep).expect("copy");
        assert_eq!((of(&to), totals.entries), (of(&from), 8));
        for name in ["below/link", "below/b", "below", "locked", "."] {
            let time = to.join(name).symlink_metadata().expect("stat");
            assert_eq!((time.mtime(), time.mtime_nsec()), (86_400, 7), "{name}");
        }
        assert_eq!(mode(&to.join("below/b")), mode(&from.join("below/b")));
        assert_eq!(mode(&to.join("below/b")) & 0o6000, 0o6000);
        assert_eq!(attribute(&to.join("below"), "system.posix_acl_default"), list);
        assert_eq!(attribute(&to.join("a"), "user.note"), b"of a file");
        let inode = |name: &str| to.join(name).metadata().expect("stat").ino();
        assert_eq!(inode("a"), inode("below/z"));
        assert_ne!(inode("a"), from.join("a").metadata().expect("stat").ino());
        assert!(to.join("sparse").metadata().expect("stat").blocks() < 1024);
        set_mode(&to.join("locked"), 0o755);
    }
    let to = bed.path("without");
    copy(&from, &to, KEEP).expect("copy");
    assert_eq!(mode(&to.join("below/b")) & 0o6000, 0);
    let (original, copied) = (of(&from), of(&to));
    assert_eq!(original.content, copied.content);
    assert_ne!(original.attributes, copied.attributes);
    for path in [from, to] {
        set_mode(&path.join("locked"), 0o755);
    }
}

fn times_of(time: Duration) -> rustix::fs::Timestamps {
    let mtime = FileTime::from(SystemTime::UNIX_EPOCH + time);
    let spec = rustix::fs::Timespec { tv_sec: mtime.sec, tv_nsec: mtime.nsec.into() };
    rustix::fs::Timestamps { last_access: spec, last_modification: spec }
}

/// As the kernel has it: version 2, then tag, permissions and id of each
/// (linux/posix_acl_xattr.h).
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn an_owner_that_cannot_be_kept_is_named() {
    let bed = Bed::new();
    let from = bed.put("from", &[("a", "")]);
    symlink("a", from.join("link")).expect("link");
    let id = 12_345;
    let all = Keep { owners: Owners::All { uid: id, gid: id }, ..KEEP };
    let copied = copy(&from, &bed.path("to"), all);
    if rustix::process::geteuid().is_root() {
        copied.expect("root may");
        for name in ["a", "link", "."] {
            let meta = bed.path("to").join(name).symlink_metadata().expect("stat");
            assert_eq!((meta.uid(), meta.gid()), (id, id), "{name}");
        }
        copy(&bed.path("to"), &bed.path("kept"), KEEP).expect("copy");
        assert_eq!(of(&bed.path("kept")), of(&bed.path("to")));
        copy(&bed.path("to"), &bed.path("ours"), Keep { owners: Owners::Ours, ..KEEP })
            .expect("copy");
        assert_eq!(bed.path("ours/a").metadata().expect("stat").uid(), 0);
        assert_eq!(of(&bed.path("ours")).content, of(&bed.path("to")).content);
    } else {
        let error = copied.expect_err("not permitted");
        let text = "owner 12345:12345 of `a` can't be kept: ";
        assert!(error.to_string().starts_with(text), "{error}");
        assert_eq!(bed.names(), ["from"]);
    }
}

#[test]
fn what_is_not_copied_is_named_and_leaves_nothing() {
    let bed = Bed::new();
    let from = bed.put("from", &[("a", "text")]);
    let refused = |error: &TreeError, text: &str| {
        assert_eq!(error.to_string(), text);
        assert!(matches!(error, TreeError::Refused { .. }));
        assert!(!bed.path("to").exists() && !bed.path(STAGED).exists());
    };
    let fifo = from.join("below");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).expect("mkfifo");
    let error = copy(&from, &bed.path("to"), KEEP).expect_err("a pipe");
    refused(&error, "`below` is a named pipe");
    // It is in a fingerprint all the same, unread.
    let with = of(&from);
    let error = stage(&bed.target("site"), &from).expect_err("a pipe");
    assert_eq!(
        error.to_string(),
        format!("copy the result beside `{}`", bed.path("site").display())
    );
    let TargetError::Io { source, .. } = error else { panic!("{error:?}") };
    let inner = source.into_inner().expect("inner").downcast::<TreeError>().expect("of a tree");
    refused(&inner, "`below` is a named pipe");
    std::fs::remove_file(&fifo).expect("remove");
    assert_ne!(of(&from), with);
    let _socket = std::os::unix::net::UnixListener::bind(&fifo).expect("bind");
    let error = copy(&from, &bed.path("to"), KEEP).expect_err("a socket");
    refused(&error, "`below` is a socket");
    std::fs::remove_file(&fifo).expect("remove");
    let error = copy(&from, &from.join("to"), KEEP).expect_err("into itself");
    refused(&error, "`to` is the place it is copied to");
    bed.put("to", &[("theirs", "")]);
    let error = copy(&from, &bed.path("to"), KEEP).expect_err("there is one");
    assert_eq!(error.raw_os_error(), Some(Errno::EXIST.raw_os_error()));
    assert!(bed.path("to/theirs").exists());
}

#[test]
fn a_person_who_loses_patience_leaves_nothing() {
    let bed = Bed::new();
    let from = bed.put("from", &[]);
    let large = "x".repeat(1 << 20);
    put(&from, &[("a", &large), ("b", &large)]);
    let target = bed.target("site");
    let result = open(&from);
    for most in [1, 1 << 19, (1 << 20) + 1, (3 << 20) + 1] {
        let mut told = 0;
        let tree = Tree { dir: result.as_fd(), keep: KEEP, like_old: false, umask: 0 };
        let stopped = target.stage(STAGED.as_ref(), tree, None, &mut |done| {
            told += done.bytes + done.entries;
            told < most
        });
        let error = stopped.expect_err("stopped");
        assert!(
            matches!(&error, TargetError::Io { source, .. }
            if source.kind() == io::ErrorKind::Interrupted),
            "{error:?}"
        );
        assert_eq!(bed.names(), ["from"], "{most}");
    }
    let mut entries = 0;
    let stopped = copy_tree(result.as_fd(), target.dir.as_fd(), "to".as_ref(), KEEP, &mut |done| {
        entries += done.entries;
        entries < 2
    });
    assert_eq!(io::Error::from(stopped.expect_err("stopped")).kind(), io::ErrorKind::Interrupted);
    assert_eq!((entries, bed.names()), (2, vec!["from".to_owned()]));
}

#[test]
fn twenty_thousand_entries() {
    let bed = Bed::new();
    let from = bed.path("from");
    for dir in 0..20 {
        std::fs::create_dir_all(from.join(dir.to_string())).expect("mkdir");
        for file in 0..999 {
            std::fs::write(from.join(format!("{dir}/{file}")), [b'x'; 10]).expect("write");
        }
    }
    let target = bed.target("site");
    let new = stage(&target, &from).expect("stage");
    assert_eq!((new.entries, new.bytes), (20_000, 199_800));
    assert_eq!(new.content, of(&from).content);
    target.commit(STAGED.as_ref(), None, &new).expect("commit");
    // Reading what is replaced is as much work.
    let small = bed.stage(&target, &[("a", "")]);
    target.commit(STAGED.as_ref(), Some(&new), &small).expect("commit");
    assert_eq!(now(&target), Some(small));
}

#[test]
fn a_tree_deeper_than_descriptors_is_copied() {
    let bed = Bed::new();
    let deep = "d/".repeat(300);
    let from = bed.put("from", &[(&format!("{deep}file"), "deep"), ("d/z", "after")]);
    copy(&from, &bed.path("to"), Keep { sync: true, ..KEEP }).expect("copy");
    assert_eq!(of(&bed.path("to")), of(&from));
}

#[test]
fn what_cannot_be_replaced_is_refused_and_says_what_works() {
    let bed = Bed::new();
    std::fs::write(bed.path("file"), "").expect("write");
    symlink("nowhere", bed.path("dangling")).expect("link");
    symlink("file", bed.path("to-file")).expect("link");
    let text = |path: &Path| TreeTarget::open(path).expect_err("refused").to_string();
    let ends = |path: &Path, end: &str| assert!(text(path).ends_with(end), "{}", text(path));
    ends(&bed.path("file"), "/file` is not a directory");
    ends(&bed.path("dangling"), "/dangling` is a symbolic link to nothing");
    ends(&bed.path("to-file"), "/to-file` is a symbolic link to what is no directory");
    ends(Path::new("relative"), "is not the absolute path of a directory");
    ends(Path::new("/"), "is not the absolute path of a directory");
    let error = TreeTarget::open(&bed.path("nowhere/site")).expect_err("no directory");
    assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    // A mount point on every Linux.
    let mounted = text(Path::new("/proc"));
    assert_eq!(
        mounted,
        "exchange `/proc`: it is a mount point; a directory below it, or a patch, works"
    );
    // A file system on which nobody makes directories.
    let refused = TreeTarget::open(Path::new("/proc/self/site")).expect_err("refused");
    assert!(refused.to_string().contains("/proc/"), "{refused}");
    assert!(refused.to_string().starts_with("make a directory beside"), "{refused}");
    assert_eq!(bed.names(), ["dangling", "file", "to-file"]);
}

#[test]
fn a_directory_that_may_not_be_written_to_is_found_before_the_work() {
    if rustix::process::geteuid().is_root() {
        // Permissions stop nobody who is root; the answer of the kernel is what counts.
        let target = Bed::new().target("site");
        let error = target.refused("make a directory beside", Errno::ACCESS.into());
        assert!(error.to_string().ends_with("; a patch, which changes file by file, works"));
        return;
    }
    let bed = Bed::new();
    bed.put("parent/site", &[]);
    set_mode(&bed.path("parent"), 0o555);
    let error = TreeTarget::open(&bed.path("parent/site")).expect_err("refused");
    assert!(matches!(&error, TargetError::NotHere { .. }), "{error:?}");
    assert!(error.to_string().ends_with("; a patch, which changes file by file, works"));
    set_mode(&bed.path("parent"), 0o755);
}

#[test]
fn all_ways_to_say_that_names_are_not_exchanged_mean_it() {
    let bed = Bed::new();
    let target = bed.target("site");
    for errno in [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOTSUP] {
        let error = target.refused(EXCHANGE, errno.into());
        assert!(error.to_string().ends_with("a symbolic link to a directory in its place works"));
        let error = target.refused("make", errno.into());
        assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
    }
    // The tried-out names are gone, whatever came out.
    bed.put("site", &[]);
    let [name, point, text] = ["target:tree:swap", "einval", "a symbolic link to a directory"];
    let output = again("opens_a_target", &bed, Way::Exchange)
        .env("COFFERDAM_FAILPOINT", format!("{name}={point}"))
        .output()
        .expect("run");
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(shown.contains(text), "{shown}");
    assert_eq!(bed.names(), ["site"]);
}

/// This test binary again, for an ignored test that plays another process.
fn again(name: &str, bed: &Bed, way: Way) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let name = format!("target::tree::tests::{name}");
    command.args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("BED", bed.dir.path()).env("WAY", serde_json::to_string(&way).expect("JSON"));
    command
}

fn played() -> (TreeTarget, Option<TreeFingerprint>, TreeFingerprint) {
    let bed = PathBuf::from(std::env::var_os("BED").expect("only run by another test"));
    let way = serde_json::from_str(&std::env::var("WAY").expect("way")).expect("way");
    let target = TreeTarget::at(&bed.join("site"), way).expect("target");
    let journal = std::fs::read(bed.join("journal")).expect("journal");
    let (old, new) = serde_json::from_slice(&journal).expect("journal");
    (target, old, new)
}

#[test]
#[ignore = "run by all_ways_to_say_that_names_are_not_exchanged_mean_it"]
fn opens_a_target() {
    let bed = PathBuf::from(std::env::var_os("BED").expect("only run by another test"));
    TreeTarget::open(&bed.join("site")).map_err(|error| error.to_string()).expect("open");
}

#[test]
#[ignore = "run by what_is_staged_is_synced_and_can_be_removed_half_done"]
fn stages() {
    let bed = PathBuf::from(std::env::var_os("BED").expect("only run by another test"));
    let target = TreeTarget::open(&bed.join("site")).expect("open");
    stage(&target, &bed.join("from")).expect("stage");
}

#[test]
fn what_is_staged_is_synced_and_can_be_removed_half_done() {
    let log = tempfile::tempdir().expect("temporary directory");
    // Files, and how many syncs of one thing and of the file system that makes.
    for (files, single, whole) in [(10, 12, 0), (100, 64, 1)] {
        let bed = Bed::new();
        for file in 0..files {
            put(&bed.path("from/below"), &[(&file.to_string(), "")]);
        }
        let names =
            visits(&mut again("stages", &bed, Way::Exchange), &log.path().join(single.to_string()));
        let count = |name: &str| names.iter().filter(|at| at.starts_with(name)).count();
        let target = bed.target("site");
        assert_eq!(bed.names(), [STAGED, "from"]);
        target.unstage(STAGED.as_ref()).expect("unstage");
        let as_a_whole = copy::is_synced_as_a_whole(open(bed.dir.path()));
        let expected = if as_a_whole { (single, whole) } else { (files + 2, 0) };
        let of = (count("target:tree:sync@"), count("target:tree:sync-all@"));
        assert_eq!(of, expected);
        killed(&mut again("stages", &bed, Way::Exchange), "target:tree:sync@7");
        assert_eq!(bed.names(), [STAGED, "from"]);
        target.unstage(STAGED.as_ref()).expect("unstage");
        assert_eq!(bed.names(), ["from"]);
    }
}

#[test]
#[ignore = "run by a_landing_that_is_killed_anywhere_is_recovered"]
fn commits() {
    let (target, old, new) = played();
    let _ = target.commit(STAGED.as_ref(), old.as_ref(), &new);
}

#[test]
#[ignore = "run by a_landing_that_is_killed_anywhere_is_recovered"]
fn recovers() {
    let (target, old, new) = played();
    target.recover(STAGED.as_ref(), old.as_ref(), &new).expect("recover");
}

/// Where a landing is about to be committed.
fn about_to_commit(way: Way, is_there: bool) -> (Bed, TreeTarget, Option<TreeFingerprint>) {
    let bed = Bed::new();
    let target = if is_there { bed.site(way, "old") } else { bed.target("site") };
    let old = now(&target);
    let new = bed.stage(&target, &[("a", "new")]);
    let journal = serde_json::to_vec(&(&old, &new)).expect("JSON");
    std::fs::write(bed.path("journal"), journal).expect("write");
    (bed, target, old)
}

/// The failpoints that this visits, in order, each as `NAME@N`.
fn visits(command: &mut Command, log: &Path) -> Vec<String> {
    let output = command.env("COFFERDAM_FAILPOINT_LOG", log).output().expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut counts = HashMap::<String, u32>::new();
    let names = read(log);
    let visits = names.lines().map(|name| {
        let count = counts.entry(name.to_owned()).or_default();
        *count += 1;
        format!("{name}@{count}")
    });
    visits.collect()
}

fn killed(command: &mut Command, at: &str) {
    let output = command.env("COFFERDAM_FAILPOINT", format!("{at}=kill")).output().expect("run");
    assert!(!output.status.success(), "not killed at {at}");
}

#[test]
fn a_landing_that_is_killed_anywhere_is_recovered() {
    let log = tempfile::tempdir().expect("temporary directory");
    for (way, is_there) in [(Way::Exchange, true), (Way::Exchange, false), (Way::Link, true)] {
        let (bed, ..) = about_to_commit(way, is_there);
        let path = log.path().join(format!("{way:?}{is_there}"));
        let points = visits(&mut again("commits", &bed, way), &path);
        assert!(points.len() > 3, "{points:?}");
        for (number, at) in points.iter().enumerate() {
            let (bed, target, old) = about_to_commit(way, is_there);
            killed(&mut again("commits", &bed, way), at);
            check_recovery(&bed, &target, old.as_ref(), at);
            // And so when the recovery is killed as well, anywhere.
            let (bed, ..) = about_to_commit(way, is_there);
            killed(&mut again("commits", &bed, way), at);
            let path = log.path().join(format!("{way:?}{is_there}{number}"));
            for then in visits(&mut again("recovers", &bed, way), &path) {
                let (bed, target, old) = about_to_commit(way, is_there);
                killed(&mut again("commits", &bed, way), at);
                killed(&mut again("recovers", &bed, way), &then);
                check_recovery(&bed, &target, old.as_ref(), &format!("{at}, {then}"));
            }
        }
    }
}

fn check_recovery(bed: &Bed, target: &TreeTarget, old: Option<&TreeFingerprint>, at: &str) {
    let (_, new): (Option<TreeFingerprint>, TreeFingerprint) =
        serde_json::from_str(&read(&bed.path("journal"))).expect("journal");
    let told = target.recover(STAGED.as_ref(), old, &new).expect(at);
    let left: Vec<_> = bed.names().into_iter().filter(|name| name.starts_with(STAGED)).collect();
    assert!(left.is_empty(), "{at}: {left:?}");
    let again = target.recover(STAGED.as_ref(), old, &new).expect(at);
    assert_eq!(told, again, "{at}");
    target.prune().expect("prune");
    let versions = target.versions().expect("versions");
    let mut names = vec!["journal".to_owned(), "site".to_owned()];
    let live = if target.way() == Way::Link { 1 } else { 0 };
    match told {
        Recovered::Committed => {
            assert_eq!(now(target).as_ref(), Some(&new), "{at}");
            let kept = usize::from(old.is_some() && target.way() == Way::Exchange);
            assert_eq!(versions.len(), kept, "{at}");
            for version in &versions {
                assert_eq!(Some(&of(&version.path)), old, "{at}");
            }
            names.extend((1..=kept + live).map(|number| format!(".site.dam-version-{number}")));
        }
        Recovered::NotCommitted => {
            assert_eq!(now(target).as_ref(), old, "{at}");
            assert!(versions.is_empty(), "{at}");
            names.retain(|name| name == "journal" || old.is_some());
        }
        Recovered::ChangedSince => panic!("nobody did, at {at}"),
    }
    names.extend((live == 1).then(|| "first".to_owned()));
    names.sort();
    assert_eq!(bed.names(), names, "{at}");
}

#[test]
fn after_a_crash_somebody_elses_change_is_never_undone() {
    let (bed, target, old) = about_to_commit(Way::Exchange, true);
    let old = old.expect("there");
    let new = of(&bed.path(STAGED));
    let recover = || target.recover(STAGED.as_ref(), Some(&old), &new).expect("recover");
    let write = |text| std::fs::write(bed.path("site/a"), text).expect("write");
    let versions = || target.versions().expect("versions");
    // Before the exchange.
    write("theirs");
    assert_eq!([recover(), recover()], [Recovered::NotCommitted, Recovered::ChangedSince]);
    assert_eq!(read(&bed.path("site/a")), "theirs");
    // Between the comparison and the exchange: what they wrote gets its name back.
    bed.stage(&target, &[("a", "new")]);
    target.swap(STAGED.as_ref(), &target.name).expect("swap");
    assert_eq!([recover(), recover()], [Recovered::NotCommitted, Recovered::ChangedSince]);
    assert_eq!(read(&bed.path("site/a")), "theirs");
    assert!(versions().is_empty());
    // After it.
    write("old");
    bed.stage(&target, &[("a", "new")]);
    target.swap(STAGED.as_ref(), &target.name).expect("swap");
    write("theirs");
    assert_eq!([recover(), recover()], [Recovered::ChangedSince, Recovered::ChangedSince]);
    assert_eq!(read(&bed.path("site/a")), "theirs");
    assert_eq!(of(&versions()[0].path), old);
    // Both: neither is lost.
    bed.stage(&target, &[("a", "new")]);
    target.swap(STAGED.as_ref(), &target.name).expect("swap");
    write("and theirs");
    assert_eq!([recover(), recover()], [Recovered::ChangedSince, Recovered::ChangedSince]);
    assert_eq!(read(&bed.path("site/a")), "and theirs");
    assert_eq!(read(&versions()[1].path.join("a")), "theirs");
}

#[test]
fn a_link_that_was_to_go_back_is_not_left() {
    let bed = Bed::new();
    let target = bed.site(Way::Link, "old");
    let old = now(&target).expect("there");
    let new = bed.stage(&target, &[("a", "new")]);
    target.commit(STAGED.as_ref(), Some(&old), &new).expect("commit");
    symlink("first", bed.path(&format!("{STAGED}.back"))).expect("link");
    let told = target.recover(STAGED.as_ref(), Some(&old), &new).expect("recover");
    assert_eq!(told, Recovered::Committed);
    assert_eq!(bed.names(), [".site.dam-version-1", "first", "site"]);
}

#[test]
fn the_same_content_again_is_recovered_too() {
    let bed = Bed::new();
    let target = bed.site(Way::Exchange, "same");
    let old = now(&target).expect("there");
    let new = bed.stage(&target, &[("a", "same")]);
    assert_eq!(old, new);
    target.swap(STAGED.as_ref(), &target.name).expect("swap");
    for _ in 0..2 {
        let told = target.recover(STAGED.as_ref(), Some(&old), &new).expect("recover");
        assert_eq!(told, Recovered::Committed);
    }
    // What was replaced had been written to.
    bed.stage(&target, &[("a", "same")]);
    std::fs::write(bed.path("site/a"), "theirs").expect("write");
    target.swap(STAGED.as_ref(), &target.name).expect("swap");
    target.recover(STAGED.as_ref(), Some(&old), &new).expect("recover");
    assert_eq!(read(&bed.path("site/a")), "theirs");
}

#[test]
fn what_has_a_namesake_keeps_its_owner() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bed = Bed::new();
    let make = |path: &str| {
        std::fs::create_dir_all(bed.path(path).parent().expect("parent")).expect("mkdir");
        std::fs::write(bed.path(path), path).expect("write");
    };
    let own =
        |path: &str, id: u32| std::os::unix::fs::lchown(bed.path(path), Some(id), Some(id + 1));
    for path in ["site/kept", "site/sub/kept", "result/kept", "result/sub/kept", "result/new"] {
        make(path);
    }
    symlink("kept", bed.path("site/link")).expect("link");
    symlink("new", bed.path("result/link")).expect("link");
    for (path, id) in [("site/kept", 7), ("site/sub", 8), ("site/sub/kept", 9), ("site/link", 10)] {
        own(path, id).expect("chown");
    }
    let target = TreeTarget::open(&bed.path("site")).expect("target");
    let old = target.look(&mut |_| true).expect("look").expect("a tree");
    let result = File::open(bed.path("result")).expect("open");
    let keep = Keep { owners: Owners::Ours, ..KEEP };
    let tree = Tree { dir: result.as_fd(), keep, like_old: true, umask: 0 };
    target.stage(".staged".as_ref(), tree, Some(&old), &mut |_| true).expect("stage");
    let owner = |path: &str| {
        let meta = bed.path(".staged").join(path).symlink_metadata().expect("stat");
        (meta.uid(), meta.gid())
    };
    assert_eq!((owner("kept"), owner("sub"), owner("sub/kept")), ((7, 8), (8, 9), (9, 10)));
    assert_eq!((owner("link"), owner("new")), ((10, 11), (0, 0)));
}
