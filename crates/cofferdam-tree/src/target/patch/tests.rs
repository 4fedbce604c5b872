use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::*;

struct Bed {
    root: PathBuf,
    /// Whether [`Bed::ops`] gives files alone.
    only_files: bool,
    _dir: Option<tempfile::TempDir>,
}

impl Bed {
    /// The directory `live`, with a bit of everything.
    fn new() -> Bed {
        let dir = tempfile::tempdir().expect("temporary directory");
        let bed = Bed { root: dir.path().into(), only_files: false, _dir: Some(dir) };
        for dir in ["sub/inner", "going/deep", "kept"] {
            std::fs::create_dir_all(bed.live(dir)).expect("mkdir");
        }
        for file in ["top", "sub/a", "sub/inner/b", "going/c", "going/deep/d", "kept/e"] {
            bed.put(file, &format!("old {file}"));
        }
        symlink("top", bed.live("latest")).expect("link");
        symlink("nowhere", bed.live("going/link")).expect("link");
        bed
    }

    fn live(&self, path: &str) -> PathBuf {
        self.root.join("live").join(path)
    }

    fn put(&self, path: &str, content: &str) {
        std::fs::write(self.live(path), content).expect("write");
    }

    fn target(&self) -> PatchTarget {
        PatchTarget::open(&self.live("")).expect("target")
    }

    fn op(&self, path: &str, change: Change) -> Op {
        let old = self.target().look(path.as_ref(), &mut |_| true).expect("look");
        Op { path: path.into(), old, change }
    }

    /// A patch that does everything that one can do.
    fn ops(&self) -> Vec<Op> {
        let write = || Change::Write { executable: false };
        let mut ops = vec![
            self.op("going", Change::Remove),
            self.op("going/c", Change::Remove),
            self.op("going/deep", Change::Remove),
            self.op("going/deep/d", Change::Remove),
            self.op("going/link", Change::Remove),
            self.op("latest", Change::Link("sub/a".into())),
            self.op("sub/a", Change::Write { executable: true }),
            self.op("sub/inner/b", Change::Link("../a".into())),
            self.op("made/of/nothing", write()),
            self.op("made/of/link", Change::Link("nothing".into())),
            self.op("empty/dir", Change::MakeDir),
            self.op("top", write()),
        ];
        if self.only_files {
            ops.retain(|op| matches!(op.change, Change::Write { .. }));
        }
        ops
    }

    fn stage(&self, ops: &[Op]) -> Result<Redo, TargetError> {
        self.target().stage(ops, TASK, 0o027, &mut |op| self.result(op), &mut |_| true)
    }

    /// What a task has made of a path.
    fn result(&self, op: &Op) -> io::Result<File> {
        let path = self.root.join("result");
        std::fs::write(&path, format!("new {}", op.path.display()))?;
        File::open(path)
    }

    /// All that is in `live`: paths, with content.
    fn tree(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(self.live("").join(&dir)).expect("list") {
                let entry = entry.expect("entry");
                let (path, kind) = (dir.join(entry.file_name()), entry.file_type());
                let name = path.display();
                let kind = kind.expect("type");
                found.push(if kind.is_dir() {
                    format!("{name}/")
                } else if kind.is_symlink() {
                    format!("{name} -> {}", entry.path().read_link().expect("link").display())
                } else {
                    let text = std::fs::read_to_string(entry.path()).expect("read");
                    format!("{name}: {text}")
                });
                if kind.is_dir() {
                    dirs.push(path);
                }
            }
        }
        found.sort();
        found
    }

    fn staged(&self) -> bool {
        self.tree().iter().any(|entry| entry.contains(".dam-"))
    }
}

const TASK: &str = "t1";

/// What [`Bed::ops`] make of it.
const NEW: [&str; 14] = [
    "empty/",
    "empty/dir/",
    "kept/",
    "kept/e: old kept/e",
    "latest -> sub/a",
    "made/",
    "made/of/",
    "made/of/link -> nothing",
    "made/of/nothing: new made/of/nothing",
    "sub/",
    "sub/a: new sub/a",
    "sub/inner/",
    "sub/inner/b -> ../a",
    "top: new top",
];

#[track_caller]
fn says(error: &TargetError, wanted: &str) {
    let text = error.to_string();
    assert!(text.contains(wanted), "{text}");
}

#[track_caller]
fn apply_all(redo: &Redo) {
    let left_alone = redo.apply().expect("apply");
    assert!(left_alone.is_empty(), "{left_alone:?}");
}

#[test]
fn all_kinds_of_changes_are_made_and_what_is_replaced_keeps_its_attributes() {
    let bed = Bed::new();
    let before = bed.tree();
    let set = |path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(bed.live(path), mode).expect("chmod");
    };
    set("top", 0o4604);
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::lchown(bed.live("top"), Some(77), Some(78)).expect("chown");
        std::os::unix::fs::lchown(bed.live("latest"), Some(77), Some(78)).expect("chown");
        set("top", 0o4604);
    }
    let redo = bed.stage(&bed.ops()).expect("stage");
    assert_eq!(bed.tree().into_iter().filter(|e| !e.contains(".dam-")).collect::<Vec<_>>(), before);
    // What has a directory waits there, the rest in the nearest.
    assert!(bed.live("sub/.dam-t1-6").exists() && bed.live(".dam-t1-8").exists());
    redo.compare(&mut |_| true).expect("compare");
    apply_all(&redo);
    assert_eq!(bed.tree(), NEW);
    for (path, mode) in [("top", 0o604), ("sub/a", 0o755), ("made/of/nothing", 0o640)] {
        let meta = bed.live(path).metadata().expect("stat");
        assert_eq!(meta.mode() & 0o7777, mode, "{path}");
    }
    for path in ["top", "latest"] {
        let meta = bed.live(path).symlink_metadata().expect("stat");
        assert!(!root || (meta.uid(), meta.gid()) == (77, 78), "{path}");
    }
    assert_eq!(bed.live("made/of").metadata().expect("stat").mode() & 0o027, 0);
    // What was done is not done again.
    let inode = bed.live("top").metadata().expect("stat").ino();
    apply_all(&redo);
    assert_eq!(bed.live("top").metadata().expect("stat").ino(), inode);
}

#[test]
fn a_thousand_files() {
    let bed = Bed::new();
    let mut ops = Vec::new();
    for number in 0..1000 {
        let path = format!("kept/{}/{number}", number % 50);
        std::fs::create_dir_all(bed.live(&path).parent().expect("parent")).expect("mkdir");
        if number % 4 != 0 {
            bed.put(&path, "old");
        }
        let change = match number % 4 {
            3 => Change::Remove,
            _ => Change::Write { executable: false },
        };
        ops.push(bed.op(&path, change));
    }
    let redo = bed.stage(&ops).expect("stage");
    redo.compare(&mut |_| true).expect("compare");
    apply_all(&redo);
    let tree = bed.tree();
    assert_eq!(tree.iter().filter(|entry| entry.contains(": new kept/")).count(), 750);
    assert!(!tree.iter().any(|entry| entry.ends_with(": old")) && !bed.staged());
}

#[test]
fn a_drift_before_the_commit_point_is_refused_and_nothing_changes() {
    type Drift = (&'static str, fn(&Bed));
    let drifts: [Drift; 6] = [
        ("top` has changed", |bed| bed.put("top", "theirs")),
        ("top` has gone", |bed| std::fs::remove_file(bed.live("top")).expect("remove")),
        ("made/of/nothing` has appeared", |bed| {
            std::fs::create_dir_all(bed.live("made/of")).expect("mkdir");
            bed.put("made/of/nothing", "theirs");
        }),
        ("latest` has changed", |bed| {
            std::fs::remove_file(bed.live("latest")).expect("remove");
            symlink("kept", bed.live("latest")).expect("link");
        }),
        ("deep` is a directory that holds more", |bed| bed.put("going/deep/theirs", "")),
        ("empty/dir` has appeared", |bed| {
            std::fs::create_dir(bed.live("empty")).expect("mkdir");
            bed.put("empty/dir", "");
        }),
    ];
    for (how, drift) in drifts {
        // Since the task began.
        let bed = Bed::new();
        let ops = bed.ops();
        drift(&bed);
        let theirs = bed.tree();
        if !how.contains("holds more") {
            says(&bed.stage(&ops).expect_err(how), how);
            assert_eq!(bed.tree(), theirs, "{how}");
        }
        // Since it was staged.
        let bed = Bed::new();
        let redo = bed.stage(&bed.ops()).expect("stage");
        drift(&bed);
        says(&redo.compare(&mut |_| true).expect_err(how), how);
        redo.abandon().expect("abandon");
        redo.abandon().expect("abandon twice");
        assert_eq!(bed.tree(), theirs, "{how}");
    }
    // A directory that somebody made meanwhile is what is wanted.
    let bed = Bed::new();
    let redo = bed.stage(&bed.ops()).expect("stage");
    std::fs::create_dir(bed.live("made")).expect("mkdir");
    redo.compare(&mut |_| true).expect("compare");
    apply_all(&redo);
    assert_eq!(bed.tree(), NEW);
}

#[test]
fn what_somebody_else_changed_is_left_alone_and_all_else_is_done() {
    let bed = Bed::new();
    let redo = bed.stage(&bed.ops()).expect("stage");
    bed.put("top", "theirs");
    bed.put("going/deep/theirs", "theirs");
    std::fs::remove_file(bed.live("latest")).expect("remove");
    bed.put("made", "theirs");
    for _ in 0..2 {
        let mut told: Vec<String> =
            redo.apply().expect("apply").iter().map(ToString::to_string).collect();
        told.sort();
        let live = bed.target().path().display().to_string();
        let emptied = "is a directory that holds more than what the patch removes";
        let changed = "has changed since the task began";
        let wanted = [
            format!("`{live}/going/deep` {emptied}"),
            format!("`{live}/going` {emptied}"),
            format!("`{live}/latest` has gone since the task began"),
            format!("`{live}/made/of` is {NO_DIR}"),
            format!("`{live}/made` has appeared since the task began"),
            format!("`{live}/made` is {NO_DIR}"),
            format!("`{live}/top` {changed}"),
        ];
        for wanted in &wanted {
            assert!(told.contains(wanted), "{wanted} in {told:#?}");
        }
        let wanted = [
            "empty/",
            "empty/dir/",
            "going/",
            "going/deep/",
            "going/deep/theirs: theirs",
            "kept/",
            "kept/e: old kept/e",
            "made: theirs",
            "sub/",
            "sub/a: new sub/a",
            "sub/inner/",
            "sub/inner/b -> ../a",
            "top: theirs",
        ];
        assert_eq!(bed.tree(), wanted);
    }
    // A staged file that is gone, and then the whole directory.
    let bed = Bed::new();
    let redo = bed.stage(&bed.ops()).expect("stage");
    std::fs::remove_file(bed.live(".dam-t1-11")).expect("remove");
    let told = redo.apply().expect("apply");
    assert_eq!(told.len(), 1);
    says(&told[0], "top` is as it was: what was to replace it is gone");
    std::fs::rename(bed.live(""), bed.root.join("away")).expect("rename");
    assert_eq!(redo.apply().expect("apply").len(), redo.changes.len());
    redo.abandon().expect("abandon");
    // A staged file that is not what was written down: the old one is better.
    let bed = Bed::new();
    let redo = bed.stage(&bed.ops()).expect("stage");
    bed.put(".dam-t1-11", "\0\0\0\0\0\0\0");
    let told = redo.apply().expect("apply");
    assert_eq!(told.len(), 1);
    says(&told[0], "top` is as it was: what was to replace it has changed");
    assert_eq!(std::fs::read_to_string(bed.live("top")).expect("read"), "old top");
    assert!(!bed.staged());
}

#[test]
fn a_link_in_place_of_a_directory_is_not_followed() {
    let bed = Bed::new();
    let outside = bed.root.join("outside");
    let redo = bed.stage(&bed.ops()).expect("stage");
    std::fs::rename(bed.live("sub"), &outside).expect("rename");
    symlink(&outside, bed.live("sub")).expect("link");
    says(&redo.compare(&mut |_| true).expect_err("link"), "sub` is not a directory, or behind");
    says(
        &bed.stage(&[Op {
            path: "sub/a".into(),
            old: State::Nothing,
            change: Change::Write { executable: false },
        }])
        .expect_err("link"),
        "sub` is not a directory, or behind",
    );
    let told = redo.apply().expect("apply");
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|error| error.to_string().contains("a symbolic link")), "{told:?}");
    assert_eq!(std::fs::read_to_string(outside.join("a")).expect("read"), "old sub/a");
    assert!(outside.join(".dam-t1-6").exists());
    // Nor in place of the target itself.
    std::fs::rename(bed.live(""), bed.root.join("away")).expect("rename");
    symlink("away", bed.root.join("live")).expect("link");
    assert_eq!(redo.apply().expect("apply").len(), redo.changes.len());
    assert!(PatchTarget::at(&bed.root.join("live")).is_err());
    assert!(PatchTarget::open(&bed.root.join("live")).is_ok());
}

#[test]
fn a_mount_is_neither_crossed_nor_replaced() {
    let root = PatchTarget::open(Path::new("/")).expect("root");
    let look = |path: &str| root.look(path.as_ref(), &mut |_| true).expect_err("a mount");
    says(&look("proc"), "`/proc` is a mount point");
    says(&look("proc/version"), "`/proc` is on another file system");
}

#[test]
fn what_changes_between_the_last_look_and_the_step_is_left_alone() {
    let bed = Bed::new();
    for path in ["top", "latest"] {
        let place = bed.target().place(path.as_ref()).expect("place").expect("directory");
        let now = now_at(&place, &mut |_| true).expect("look");
        bed.put("theirs", "theirs");
        std::fs::rename(bed.live("theirs"), bed.live(path)).expect("rename");
        bed.put("staged", "new");
        let error = place.swap(&place.dir, "staged".as_ref(), now.version);
        says(&error.expect_err("drift"), "has changed since the task began");
        let error = crate::target::redo::remove(&place, &now).expect_err("drift");
        says(&error, "has changed since the task began");
        assert_eq!(std::fs::read_to_string(bed.live(path)).expect("read"), "theirs");
    }
}

#[test]
fn contradictions_are_refused_by_name() {
    let bed = Bed::new();
    let old = |path: &str| bed.target().look(path.as_ref(), &mut |_| true).expect("look");
    let op = |path: &str, old: State, change: &Change| Op {
        path: path.into(),
        old,
        change: change.clone(),
    };
    let write = Change::Write { executable: false };
    let (nothing, remove, make_dir) = (State::Nothing, Change::Remove, Change::MakeDir);
    let top = || op("top", old("top"), &write);
    let before = bed.tree();
    for (ops, how) in [
        (vec![top(), top()], "top` is changed twice by one patch"),
        (vec![op("x", nothing.clone(), &remove)], "x` is not there to be removed"),
        (vec![op("sub", State::Dir, &write)], "sub` is a directory"),
        (vec![op("top", old("top"), &make_dir)], "top` is not free for a directory"),
        (vec![op("top/x", nothing.clone(), &write)], "top` is not a directory"),
        (vec![op("latest/x", nothing.clone(), &write)], "latest` is not a directory, or behind"),
        (
            vec![op("going", State::Dir, &remove), op("going/x", nothing.clone(), &write)],
            "going/x` is below what the same patch makes or removes",
        ),
        (
            vec![op("x", nothing.clone(), &write), op("x/y", nothing.clone(), &write)],
            "x/y` is below what the same patch makes or removes",
        ),
        (vec![op("../x", nothing.clone(), &write)], "../x` is no path below the directory"),
        (vec![op("/etc/x", nothing.clone(), &write)], "/etc/x` is no path below"),
        (vec![op("sub/./x", nothing.clone(), &write)], "is no path below the directory"),
        (vec![op("", nothing.clone(), &write)], "is no path below the directory"),
        (vec![op("x/.dam-t1-0", nothing.clone(), &write)], "is called like what is staged"),
    ] {
        says(&bed.stage(&ops).expect_err(how), how);
        assert_eq!(bed.tree(), before, "{how}");
    }
    let kind = FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, bed.live("pipe"), kind, Mode::RUSR, 0).expect("mknod");
    let error = bed.target().look("pipe".as_ref(), &mut |_| true).expect_err("pipe");
    says(&error, "pipe` is neither a file, a link nor a directory");
}

#[test]
fn each_of_a_few_files_is_synced() {
    let mut bed = Bed::new();
    bed.only_files = true;
    assert!(!run_with(&bed, "target:file:sync@3=kill"));
    assert!(run_with(&bed, "target:file:sync@4=kill"));
    let redo = bed.stage(&bed.ops()).expect("stage");
    apply_all(&redo);
    assert!(!bed.staged());
}

#[test]
fn a_redo_record_that_is_torn_or_altered_is_refused() {
    let bed = Bed::new();
    let redo = bed.stage(&bed.ops()).expect("stage");
    let journal = bed.root.as_path();
    redo.write(journal, "redo").expect("write");
    assert_eq!(Redo::read(journal, "redo").expect("read"), redo);
    let path = journal.join("redo");
    let whole = std::fs::read(&path).expect("read");
    for length in (0..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..length]).expect("write");
        says(&Redo::read(journal, "redo").expect_err("torn"), "redo` is torn or altered");
    }
    for at in (0..whole.len()).step_by(7) {
        let mut altered = whole.clone();
        altered[at] ^= 1;
        std::fs::write(&path, altered).expect("write");
        says(&Redo::read(journal, "redo").expect_err("altered"), "redo` is torn or altered");
    }
    // With a checksum that fits.
    let refused = |how: &str, alter: &dyn Fn(&mut Redo)| {
        let mut altered = redo.clone();
        alter(&mut altered);
        altered.write(journal, "redo").expect("write");
        says(&Redo::read(journal, "redo").expect_err(how), how);
        says(&altered.apply().expect_err(how), how);
    };
    let before = bed.tree();
    refused("has version 2, not 1", &|redo| redo.version = 2);
    refused("names what can't be: `../x`", &|redo| redo.changes[0].path = "../x".into());
    refused("names what can't be", &|redo| {
        redo.changes[0].temp = Some(Temp { dir: PathBuf::new(), name: "top".into() });
    });
    refused("names what can't be", &|redo| {
        redo.changes[0].temp = Some(Temp { dir: "..".into(), name: ".dam-x".into() });
    });
    refused("has paths out of order", &|redo| redo.changes.swap(0, 1));
    assert_eq!(bed.tree(), before);
    says(&Redo::read(journal, "none").expect_err("none"), "read the redo record `");
}

#[test]
fn names_that_are_not_text_are_kept() {
    let bed = Bed::new();
    let name = OsStr::from_bytes(b"n\xff\nme");
    let op = Op {
        path: Path::new("sub").join(name),
        old: State::Nothing,
        change: Change::Link(name.into()),
    };
    bed.stage(&[op]).expect("stage").write(&bed.root, "redo").expect("write");
    let redo = Redo::read(&bed.root, "redo").expect("read");
    apply_all(&redo);
    let link = std::fs::read_link(bed.live("sub").join(name)).expect("link");
    assert_eq!(link.as_os_str(), name);
}

#[test]
#[ignore = "the process that the next tests kill"]
fn stage_or_apply() {
    let dir = std::env::var_os("TREE_TEST_PATCH").expect("run by another test");
    match Redo::read(Path::new(&dir), "redo") {
        Ok(redo) => apply_all(&redo),
        Err(_) => {
            let only_files = std::env::var_os("TREE_TEST_ONLY_FILES").is_some();
            let bed = Bed { root: dir.clone().into(), only_files, _dir: None };
            bed.stage(&bed.ops()).expect("stage");
        }
    }
}

/// Whether it ended by itself.
fn run_with(bed: &Bed, failpoint: &str) -> bool {
    let mut again = Command::new(std::env::current_exe().expect("this test"));
    if bed.only_files {
        again.env("TREE_TEST_ONLY_FILES", "1");
    }
    let ended = again
        .args(["--exact", "target::patch::tests::stage_or_apply", "--ignored"])
        .env("TREE_TEST_PATCH", &bed.root)
        .env("COFFERDAM_FAILPOINT", failpoint)
        .stdout(Stdio::null())
        .status();
    let ended = ended.expect("run");
    assert!(ended.success() || ended.signal() == Some(9), "{failpoint}: {ended}");
    ended.success()
}

#[test]
fn killed_at_any_step_it_is_applied_again_to_the_same_end() {
    for (step, least) in [
        ("target:patch:apply", 15),
        ("target:file:rename", 6),
        ("target:patch:unstage", 6),
        ("target:patch:sync", 1),
        ("target:patch:done", 1),
    ] {
        for nth in 1.. {
            let bed = Bed::new();
            let redo = bed.stage(&bed.ops()).expect("stage");
            redo.write(&bed.root, "redo").expect("write");
            let ended = run_with(&bed, &format!("{step}@{nth}=kill"));
            for _ in 0..2 {
                apply_all(&redo);
                assert_eq!(bed.tree(), NEW, "{step}@{nth}");
            }
            if ended {
                assert!(nth > least, "{step} is visited {} times", nth - 1);
                break;
            }
        }
    }
}

#[test]
fn killed_while_staging_nothing_has_changed_and_nothing_stays() {
    for (step, least) in [
        ("target:patch:stage", 12),
        ("target:file:create", 3),
        ("target:file:attributes", 3),
        ("target:patch:link", 3),
        ("target:patch:sync", 1),
    ] {
        for nth in 1.. {
            let bed = Bed::new();
            let (before, ops) = (bed.tree(), bed.ops());
            let ended = run_with(&bed, &format!("{step}@{nth}=kill"));
            bed.target().unstage(&ops, TASK).expect("unstage");
            assert_eq!(bed.tree(), before, "{step}@{nth}");
            if ended {
                assert!(nth > least, "{step} is visited {} times", nth - 1);
                break;
            }
        }
    }
    // And one that fails cleans up by itself, also after an earlier attempt.
    let bed = Bed::new();
    let (before, ops) = (bed.tree(), bed.ops());
    bed.stage(&ops).expect("stage");
    let mut open = |op: &Op| match op.path.to_str() {
        Some("top") => Err(io::ErrorKind::PermissionDenied.into()),
        _ => bed.result(op),
    };
    let staged = bed.target().stage(&ops, TASK, 0, &mut open, &mut |_| true);
    says(&staged.expect_err("no content"), "top`");
    assert_eq!(bed.tree(), before);
}
