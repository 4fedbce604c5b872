use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;

const BINARY: &str = "/home/ann/.cargo/bin/dam";

/// A root directory: restricted, with a parser that writes down how it was called.
struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().expect("tempdir"));
        machine.write(RESTRICTED, "1\n");
        machine.write("/proc/self/attr/current", "unconfined\n");
        machine.write("/etc/apparmor.d/other", "");
        machine.program(BINARY, "exit 0");
        machine.parser("exit 0");
        machine
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: &str) {
        let path = under(self.root(), path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        std::fs::write(path, text).expect("write");
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(under(self.root(), path)).unwrap_or_default()
    }

    /// Written by another process: one that is being written can't be run, and a test
    /// beside this one may just have been copied for a child of its own.
    fn program(&self, path: &str, script: &str) {
        let path = under(self.root(), path);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let done = Command::new("sh").args(["-c", write]).arg(path).arg(script).status();
        assert!(done.expect("sh").success());
    }

    fn parser(&self, script: &str) {
        let log = self.root().join("calls").display().to_string();
        self.program(PARSERS[0], &format!("echo \"$*\" >> '{log}'\n{script}"));
    }

    fn calls(&self) -> Vec<String> {
        let root = self.root().display().to_string();
        self.read("/calls").lines().map(|line| line.replace(&root, "")).collect()
    }

    fn mode(&self, path: &str, mode: u32) {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(under(self.root(), path), mode).expect("chmod");
    }

    fn plan(&self) -> Result<Plan, Error> {
        plan(self.root(), BINARY.as_ref())
    }

    /// Like a boot, or a load: what the kernel says afterwards.
    fn loaded(&self) {
        self.write("/proc/self/attr/current", "dam (unconfined)\n");
        self.write(LOADED, "other (enforce)\ndam (unconfined)\n");
    }

    /// Names in the directory of profiles.
    fn profiles(&self) -> Vec<String> {
        let entries = std::fs::read_dir(under(self.root(), "/etc/apparmor.d")).expect("read");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

#[track_caller]
fn refused(result: Result<Plan, Error>, words: &str) {
    let error = result.expect_err("refused");
    assert!(error.to_string().contains(words), "no `{words}` in: {error}");
    assert_eq!(error.exit_code(), crate::ExitCode::Usage);
    assert!(error.hint().is_some());
}

#[test]
fn where_nothing_is_restricted_there_is_nothing_to_do() {
    let machine = Machine::new();
    // Whatever else is wrong.
    machine.mode("/home/ann/.cargo", 0o777);
    machine.write(RESTRICTED, "0\n");
    assert_eq!(machine.plan().expect("plan").action, Action::Nothing);
    assert!(!is_missing(machine.root()));
    std::fs::remove_file(under(machine.root(), RESTRICTED)).expect("remove");
    assert_eq!(machine.plan().expect("plan").action, Action::Nothing);
}

#[test]
fn a_profile_is_checked_written_and_loaded_then_unloaded_and_deleted() {
    let machine = Machine::new();
    assert!(is_missing(machine.root()));
    let plan = machine.plan().expect("plan");
    assert_eq!(plan.action, Action::Write);
    assert_eq!(machine.calls(), [""; 0]);
    assert_eq!(machine.profiles(), ["other"]);
    plan.perform(machine.root()).expect("perform");
    assert_eq!(machine.calls(), ["-Q -K", "-r /etc/apparmor.d/dam"]);
    assert_eq!(Some(machine.read(PROFILE)), plan.profile);
    assert_eq!(machine.profiles(), ["dam", "other"]);
    assert!(plan.profile.is_some_and(|text| text.contains(&format!("\"{BINARY}\""))));

    // Not in force, as after a reload of everything that left it out: loaded again.
    assert_eq!(machine.plan().expect("plan").action, Action::Load);
    machine.loaded();
    assert_eq!(machine.plan().expect("plan").action, Action::Nothing);
    assert!(!is_missing(machine.root()));

    let back = unplan(machine.root(), BINARY.as_ref()).expect("plan");
    assert_eq!(back.action, Action::Remove);
    back.perform(machine.root()).expect("perform");
    assert_eq!(machine.calls().last().expect("call"), "-R /etc/apparmor.d/dam");
    assert_eq!(machine.profiles(), ["other"]);
    let back = unplan(machine.root(), BINARY.as_ref()).expect("plan");
    assert_eq!(back.action, Action::Nothing);
}

#[test]
fn a_profile_of_ours_for_another_path_is_replaced() {
    let machine = Machine::new();
    machine.write(PROFILE, &profile("/opt/old/dam".as_ref()).expect("profile"));
    let plan = machine.plan().expect("plan");
    assert!(plan.before.as_ref().is_some_and(|text| text.contains("/opt/old/dam")));
    plan.perform(machine.root()).expect("perform");
    assert_eq!(Some(machine.read(PROFILE)), plan.profile);
}

#[test]
fn a_file_of_somebody_else_is_never_touched() {
    let machine = Machine::new();
    let theirs = "abi <abi/4.0>,\nprofile dam /opt/dam flags=(unconfined) {\n  userns,\n}\n";
    machine.write(PROFILE, theirs);
    refused(machine.plan(), "did not write it");
    refused(unplan(machine.root(), BINARY.as_ref()), "did not write it");
    // One that does the job is as good.
    machine.loaded();
    assert_eq!(machine.plan().expect("plan").action, Action::Nothing);
    assert_eq!(machine.read(PROFILE), theirs);
    assert_eq!(machine.calls(), [""; 0]);

    // A link is nobody's word that what it leads to is ours.
    let machine = Machine::new();
    machine.write("/etc/ours", &profile(BINARY.as_ref()).expect("profile"));
    std::os::unix::fs::symlink("../ours", under(machine.root(), PROFILE)).expect("link");
    refused(machine.plan(), "did not write it");
    refused(unplan(machine.root(), BINARY.as_ref()), "did not write it");
}

#[test]
fn what_appears_while_a_person_is_asked_stays() {
    let machine = Machine::new();
    let plan = machine.plan().expect("plan");
    machine.write(PROFILE, "theirs\n");
    plan.perform(machine.root()).expect_err("refused");
    assert_eq!(machine.read(PROFILE), "theirs\n");
    assert_eq!(machine.profiles(), ["dam", "other"]);

    let ours = profile("/opt/old/dam".as_ref()).expect("profile");
    machine.write(PROFILE, &ours);
    let (plan, back) = (machine.plan(), unplan(machine.root(), BINARY.as_ref()));
    machine.write(PROFILE, "theirs\n");
    plan.expect("plan").perform(machine.root()).expect_err("refused");
    back.expect("plan").perform(machine.root()).expect_err("refused");
    assert_eq!(machine.read(PROFILE), "theirs\n");
    assert!(machine.calls().iter().all(|call| call == "-Q -K"), "{:?}", machine.calls());
}

#[test]
fn a_profile_that_is_refused_leaves_no_file_behind() {
    let machine = Machine::new();
    let plan = machine.plan().expect("plan");
    machine.parser("echo 'syntax error' >&2; exit 1");
    let error = plan.check(machine.root()).expect_err("refused");
    assert!(error.to_string().contains("syntax error"), "{error}");
    plan.perform(machine.root()).expect_err("refused");
    assert!(machine.calls().iter().all(|call| call == "-Q -K"), "{:?}", machine.calls());
    assert_eq!(machine.profiles(), ["other"]);

    machine.parser("[ \"$1\" != -r ]");
    plan.perform(machine.root()).expect_err("refused");
    assert_eq!(machine.profiles(), ["other"]);

    let old = profile("/opt/old/dam".as_ref()).expect("profile");
    machine.write(PROFILE, &old);
    machine.plan().expect("plan").perform(machine.root()).expect_err("refused");
    assert_eq!(machine.read(PROFILE), old);
}

#[test]
fn without_a_parser_nothing_is_written() {
    let machine = Machine::new();
    std::fs::remove_file(under(machine.root(), PARSERS[0])).expect("remove");
    let plan = machine.plan().expect("plan");
    refused(plan.check(machine.root()).map(|()| plan.clone()), "no `apparmor_parser`");
    refused(plan.perform(machine.root()).map(|()| plan), "no `apparmor_parser`");
    assert_eq!(machine.profiles(), ["other"]);
}

#[test]
fn a_profile_that_is_not_loaded_is_deleted_and_one_that_can_not_be_unloaded_stays() {
    let machine = Machine::new();
    let ours = profile(BINARY.as_ref()).expect("profile");
    machine.write(PROFILE, &ours);
    machine.write(LOADED, "other (enforce)\n");
    let back = unplan(machine.root(), BINARY.as_ref()).expect("plan");
    assert_eq!((back.action, &back.command), (Action::Delete, &None));
    machine.loaded();
    machine.parser("exit 1");
    let unload = unplan(machine.root(), BINARY.as_ref()).expect("plan");
    unload.perform(machine.root()).expect_err("refused");
    assert_eq!(machine.read(PROFILE), ours);
    back.perform(machine.root()).expect("perform");
    assert_eq!(machine.profiles(), ["other"]);
}

#[test]
fn a_confined_process_is_told_who_decides() {
    let machine = Machine::new();
    machine.write("/proc/self/attr/current", "docker-default (enforce)\n");
    refused(machine.plan(), "`docker-default`");
    assert!(!is_missing(machine.root()));
    // Inherited from an editor that may do everything.
    machine.write("/proc/self/attr/current", "code (unconfined)\n");
    assert_eq!(machine.plan().expect("plan").action, Action::Write);
}

#[test]
fn a_program_that_others_could_replace_is_refused_by_name() {
    let machine = Machine::new();
    for (path, mode) in [(BINARY, 0o757), ("/home/ann/.cargo/bin", 0o1777), ("/home", 0o707)] {
        machine.mode(path, mode);
        refused(machine.plan(), &format!("every user can write `{path}`"));
        machine.mode(path, 0o755);
    }
    machine.plan().expect("plan");

    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    machine.mode("/home/ann/.cargo/bin", 0o775);
    let group = format!("the group {gid} can write `/home/ann/.cargo/bin`");
    refused(machine.plan(), &group);
    // A group of the owner's own is the owner.
    let ann = format!("ann:x:{uid}:{gid}::/home/ann:/bin/sh\n");
    machine.write("/etc/passwd", &ann);
    machine.write("/etc/group", &format!("ann:x:{gid}:\n"));
    machine.plan().expect("plan");
    machine.write("/etc/group", &format!("ann:x:{gid}:ann\n"));
    machine.plan().expect("plan");
    machine.write("/etc/group", &format!("ann:x:{gid}:ann,bob\n"));
    refused(machine.plan(), &group);
    machine.write("/etc/group", &format!("ann:x:{gid}:\n"));
    machine.write("/etc/passwd", &format!("{ann}bob:x:99999:{gid}::/:/bin/sh\n"));
    refused(machine.plan(), &group);
}

#[test]
fn an_access_control_list_is_not_taken_for_a_group() {
    let machine = Machine::new();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    machine.write("/etc/passwd", &format!("ann:x:{uid}:{gid}::/home/ann:/bin/sh\n"));
    machine.write("/etc/group", &format!("ann:x:{gid}:\n"));
    // linux/posix_acl_xattr.h: owner, user 99999, group, mask, others.
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in [
        (1u16, 7u16, u32::MAX),
        (2, 7, 99_999),
        (4, 5, u32::MAX),
        (16, 7, u32::MAX),
        (32, 5, u32::MAX),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let dir = under(machine.root(), "/home/ann/.cargo");
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(&dir, "system.posix_acl_access", &list, flags) {
        Err(rustix::io::Errno::NOTSUP) => eprintln!("not run: no access control lists here"),
        set => {
            set.expect("setxattr");
            refused(machine.plan(), "access control list can write `/home/ann/.cargo`");
        }
    }
}

#[test]
fn a_directory_of_another_owner_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: only root can give a directory away");
        return;
    }
    let machine = Machine::new();
    let cargo = under(machine.root(), "/home/ann/.cargo");
    std::os::unix::fs::chown(&cargo, Some(99_999), None).expect("chown");
    refused(machine.plan(), "uid 99999 can write `/home/ann/.cargo`");
    // The owner of the program itself is trusted with it.
    let binary = under(machine.root(), BINARY);
    std::os::unix::fs::chown(&binary, Some(99_999), None).expect("chown");
    let plan = machine.plan().expect("plan");
    assert!(plan.allows.is_some_and(|text| text.contains("root and uid 99999")));
}

#[test]
fn a_path_that_can_not_be_quoted_is_refused() {
    for path in ["/a\"b/dam", "/a'b/dam", "/a\nb/dam", "/a\\b/dam", "/a\tb/dam", "dam"] {
        refused(profile(path.as_ref()).map(|_| unreachable!("{path}")), "its path");
    }
}

#[test]
fn the_call_can_be_pasted() {
    let call = |path: &str| call(path.as_ref()).trim_start_matches("sudo ").to_owned();
    assert_eq!(call(BINARY), format!("{BINARY} setup"));
    assert_eq!(call("/a b/it's/dam"), "'/a b/it'\\''s/dam' setup");
}

/// The real parser reads the profile, for paths plain and odd.
///
/// One before 4.0 (Debian 12 has 3.0) knows neither `abi/4.0` nor the rule `userns`:
/// without those two lines it can still judge the rest, which is where paths are.
#[test]
fn the_real_parser_reads_the_profile() {
    let root = Path::new("/");
    let version = run(root, &["--version"], None)
        .expect("`apparmor_parser` is missing: install the package `apparmor`, as test.sh does");
    let major = version.split("version ").nth(1).and_then(|rest| rest.split('.').next());
    let major: u32 = major.and_then(|text| text.parse().ok()).expect("a version");
    let read = |text: &str| {
        run(root, &["-q", "-Q", "-K", "-D", "rule-exprs", "-D", "expr-stats"], Some(text))
    };
    for path in [BINARY, "/home/x y/a*?[1]{b,c}^,@{X} #é/!~$(d)&;/dam"] {
        let whole = profile(path.as_ref()).expect("profile");
        let text = if major >= 4 {
            whole
        } else {
            eprintln!("{version}: the lines `abi` and `userns` are not checked");
            read(&whole).expect_err("an older one refuses them; is the version read wrong?");
            let known = |line: &&str| !line.starts_with("abi ") && line.trim() != "userns,";
            whole.lines().filter(known).map(|line| format!("{line}\n")).collect()
        };
        let said = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        // Each byte stands for itself, and there is no pattern in it.
        let letters = format!("expr tree: c {}, [] 0, [^] 0, | 0, + 0, * 0,", path.len());
        assert!(said.contains(&letters), "no `{letters}` in:\n{said}");
        read(&text.replace("flags=", "flag=")).expect_err("not a word");
        read(text.trim_end().trim_end_matches('}')).expect_err("not closed");
    }
    let starred = profile("/home/X/dam".as_ref()).expect("profile").replace('X', "*");
    let starred: String = starred
        .lines()
        .filter(|line| !line.starts_with("abi ") && !line.contains("userns"))
        .collect::<Vec<_>>()
        .join("\n");
    let said = read(&starred).expect("a pattern");
    assert!(!said.contains("| 0, + 0, * 0,"), "a pattern would not be noticed:\n{said}");
}
