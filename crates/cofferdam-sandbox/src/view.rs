//! The system part of a task's view: what of the host is granted to every task.
//!
//! Lists, not rules: what is not named here is not there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::{Ids, Mount, Network};

/// Host directories that every task sees, read-only.
pub const SYSTEM_DIRS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
];

/// Entries of `/etc` that programs need and that hold no secret. Accounts,
/// host names and name service settings are written anew ([`etc`]).
const ETC: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "dpkg/origins",
    "fonts",
    "gai.conf",
    "gss",
    "host.conf",
    "inputrc",
    "java-8-openjdk",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "manpath.config",
    "mime.types",
    "networks",
    "nanorc",
    "os-release",
    "perl",
    "pki",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "skel",
    "ssl",
    "terminfo",
    "timezone",
    "vim",
    "xdg",
    "zsh",
];

/// Variables that a task gets from the caller's environment; `LC_*` as well.
const ENVIRONMENT: &[&str] =
    &["CLICOLOR", "COLORTERM", "LANG", "LANGUAGE", "NO_COLOR", "SOURCE_DATE_EPOCH", "TERM", "TZ"];

/// Name of the task's user inside where the caller has none for its id.
const USER_NAME: &str = "dam";

/// Who the task is inside.
#[derive(Debug, Clone)]
pub struct Person {
    /// As whom the task runs.
    pub ids: Ids,
    /// Login name inside.
    pub name: String,
    /// Home directory inside: the path of the caller's own, the content private.
    pub home: PathBuf,
}

impl Person {
    /// The person that a task of the caller runs for.
    ///
    /// # Errors
    /// When there is no absolute home directory: one is needed for its path.
    pub fn of_caller(ids: Ids) -> std::io::Result<Person> {
        let home = std::env::var_os("HOME")
            .map(PathBuf::from)
            .filter(|home| home.is_absolute())
            .ok_or_else(|| std::io::Error::other("HOME is not set to an absolute path"))?;
        let home = std::fs::canonicalize(&home).unwrap_or(home);
        let name = ["USER", "LOGNAME"]
            .iter()
            .find_map(|key| std::env::var(key).ok())
            .filter(|name| {
                !ids.switch
                    && name != "root"
                    && !name.is_empty()
                    && name
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
            })
            .unwrap_or_else(|| USER_NAME.to_owned());
        Ok(Person { ids, name, home })
    }
}

/// The mounts of the system part: system directories, `/etc`, `/dev`, `/proc`,
/// `/run`, `/sys` as far as run-times read it, and the usual empty places.
#[must_use]
pub fn system(person: &Person, network: Network) -> Vec<Mount> {
    let mut mounts = Vec::new();
    for dir in SYSTEM_DIRS {
        let path = Path::new(dir);
        if let Ok(target) = std::fs::read_link(path) {
            mounts.push(Mount::Symlink { dest: path.into(), target });
        } else if path.is_dir() {
            mounts.push(read_only(path, path));
        }
    }
    mounts.extend(etc(person, network));
    mounts.push(Mount::Dev);
    mounts.push(Mount::Proc);
    mounts.push(Mount::Tmpfs { dest: "/run".into(), mode: 0o755, size: 64 << 20 });
    for dir in ["/var/cache", "/var/lib", "/var/log", "/mnt", "/srv"] {
        mounts.push(Mount::Dir { dest: dir.into() });
    }
    mounts.push(Mount::Symlink { dest: "/var/run".into(), target: "/run".into() });
    // Run-times size their thread pools by these.
    let cpus = Path::new("/sys/devices/system/cpu");
    if cpus.is_dir() {
        mounts.push(Mount::Bind {
            source: cpus.into(),
            dest: cpus.into(),
            writable: false,
            executable: false,
        });
    }
    if has_limits(Path::new("/sys/fs/cgroup")) {
        mounts.push(Mount::Cgroup);
    }
    mounts
}

/// Whether control groups (version 2) are at `top` and the caller's own can have
/// limits. The root group can't; its groups are those of the whole host.
fn has_limits(top: &Path) -> bool {
    let Ok(own) = std::fs::read_to_string("/proc/self/cgroup") else { return false };
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    // The root group has no type.
    own.is_some_and(|own| top.join(own).join("cgroup.type").exists())
}

fn read_only(source: &Path, dest: &Path) -> Mount {
    Mount::Bind { source: source.into(), dest: dest.into(), writable: false, executable: true }
}

fn etc(person: &Person, network: Network) -> Vec<Mount> {
    let etc = Path::new("/etc");
    let mut mounts = Vec::new();
    for name in ETC {
        let path = etc.join(name);
        // A link's target is granted or not on its own account.
        if let Ok(target) = std::fs::read_link(&path) {
            mounts.push(Mount::Symlink { dest: path, target });
        } else if path.is_file() {
            mounts.push(Mount::Copy { path });
        } else if path.is_dir() {
            mounts.push(Mount::Bind {
                source: path.clone(),
                dest: path,
                writable: false,
                executable: true,
            });
        }
    }
    let file = |name: &str, content: String| Mount::File {
        dest: etc.join(name),
        content: content.into_bytes(),
    };
    let Ids { uid, gid, .. } = person.ids;
    let (name, home) = (&person.name, person.home.display());
    mounts.push(file(
        "passwd",
        format!(
            "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
             {name}:x:{uid}:{gid}:{name}:{home}:/bin/sh\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
    ));
    mounts.push(file("group", format!("root:x:0:\n{name}:x:{gid}:\nnogroup:x:65534:\n")));
    mounts.push(file("hostname", "dam\n".into()));
    mounts.push(file(
        "hosts",
        "127.0.0.1 localhost dam\n::1 localhost ip6-localhost ip6-loopback\n".into(),
    ));
    mounts.push(file(
        "nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n\
         protocols: files\nservices: files\n"
            .into(),
    ));
    if network == Network::Open
        && let Ok(resolvers) = std::fs::read_to_string("/etc/resolv.conf")
    {
        mounts.push(file("resolv.conf", resolvers));
    }
    mounts
}

/// The environment that a task starts with: the allowed part of `host`, its
/// home, and the entries of PATH that exist inside: `granted` says where others than
/// those in system directories do.
#[must_use]
pub fn environment(
    person: &Person,
    host: impl IntoIterator<Item = (OsString, OsString)>,
    granted: impl Fn(&Path) -> Option<PathBuf>,
) -> Vec<(OsString, OsString)> {
    let mut path = OsString::new();
    let mut env: Vec<(OsString, OsString)> = Vec::new();
    for (key, value) in host {
        if key == "PATH" {
            path = value;
        } else if ENVIRONMENT.iter().any(|name| key == *name) || key.as_bytes().starts_with(b"LC_")
        {
            env.push((key, value));
        }
    }
    let mut set = |key: &str, value: &OsStr| env.push((key.into(), value.into()));
    set("PATH", &path_inside(&path, granted));
    set("HOME", person.home.as_os_str());
    set("USER", person.name.as_ref());
    set("LOGNAME", person.name.as_ref());
    set("SHELL", "/bin/sh".as_ref());
    set("TMPDIR", "/tmp".as_ref());
    env.sort();
    env
}

/// As [`environment`], for who sees the host as it is: its PATH, home and name too.
#[must_use]
pub fn hosts_environment(
    host: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    const OWN: &[&str] = &["PATH", "HOME", "USER", "LOGNAME", "SHELL"];
    let mut env: Vec<(OsString, OsString)> = host
        .into_iter()
        .filter(|(key, _)| {
            let listed = |names: &[&str]| names.iter().any(|name| key == *name);
            listed(OWN) || listed(ENVIRONMENT) || key.as_bytes().starts_with(b"LC_")
        })
        .collect();
    env.sort();
    env
}

/// The entries of a PATH that lie below [`SYSTEM_DIRS`] or are granted and exist,
/// then the standard ones that it lacks. An entry that is a link from outside, such as
/// the one that fnm makes for each shell, is where it leads.
fn path_inside(path: &OsStr, granted: impl Fn(&Path) -> Option<PathBuf>) -> OsString {
    let system = |dir: &Path| SYSTEM_DIRS.iter().any(|system| dir.starts_with(system));
    let place = |dir: &Path| if system(dir) { Some(dir.to_owned()) } else { granted(dir) };
    let standard = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"];
    let mut dirs: Vec<PathBuf> = Vec::new();
    for dir in std::env::split_paths(path).chain(standard.map(PathBuf::from)) {
        if !dir.is_absolute() || !dir.is_dir() {
            continue;
        }
        let inside = place(&dir).or_else(|| place(&std::fs::canonicalize(&dir).ok()?));
        dirs.extend(inside.filter(|dir| !dirs.contains(dir)));
    }
    std::env::join_paths(dirs).expect("entries of a PATH hold no colon")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_granted_stays_in_path() {
        let path = OsStr::new("/root:/home/ann/.cargo/bin:/usr/bin:.:/usr/bin:/nowhere");
        let path = path_inside(path, |dir| (dir == Path::new("/home")).then(|| dir.to_owned()));
        let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        assert_eq!(dirs[0], Path::new("/usr/bin"));
        assert!(!dirs.contains(&PathBuf::from("/home/ann/.cargo/bin")));
        assert_eq!(dirs.iter().filter(|dir| **dir == Path::new("/usr/bin")).count(), 1);
    }

    #[test]
    fn secrets_in_the_environment_stay_outside() {
        let person = Person {
            ids: Ids { uid: 7, gid: 7, switch: false },
            name: "ann".into(),
            home: "/home/ann".into(),
        };
        let host = [
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("SSH_AUTH_SOCK", "/s"),
            ("LC_ALL", "C"),
            ("LD_PRELOAD", "/evil.so"),
        ]
        .map(|(key, value)| (OsString::from(key), OsString::from(value)));
        let env = environment(&person, host, |_| None);
        let keys: Vec<_> = env.iter().map(|(key, _)| key.to_str().expect("utf-8")).collect();
        assert_eq!(keys, ["HOME", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER"]);
    }
}
