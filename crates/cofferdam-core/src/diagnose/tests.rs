//! What programs print, and what is made of it.

use super::*;

/// A host that has what it is told.
#[derive(Default)]
struct Fake {
    /// Paths; a program is found by its name.
    files: &'static [&'static str],
    port: Option<u16>,
    full: bool,
}

impl Host for Fake {
    fn program(&self, name: &str) -> Option<PathBuf> {
        self.files.iter().map(PathBuf::from).find(|file| file.ends_with(name))
    }

    fn file(&self, path: &str) -> Option<PathBuf> {
        self.files.iter().find(|known| **known == path).map(PathBuf::from)
    }

    fn listens(&self, port: u16) -> bool {
        self.port == Some(port)
    }

    fn can_write(&self, path: &Path) -> bool {
        self.files.iter().any(|file| path.starts_with(file))
    }

    fn disk_is_full(&self) -> bool {
        self.full
    }
}

fn command() -> Failure<'static> {
    Failure {
        role: Role::Command,
        level: Level::Sandbox,
        writable: &[],
        idle: false,
        network: Network::None,
        wall: Wall::Full,
        read_only: false,
        env: &[],
        top: Path::new("/srv/repo"),
        home: Path::new("/home/ann"),
    }
}

fn check() -> Failure<'static> {
    Failure { role: Role::Check, ..command() }
}

fn printed(text: &str) -> Vec<LogLine> {
    let line = |text: &str| LogLine { at_ms: 1, stream: "err".into(), text: text.into() };
    text.lines().map(line).collect()
}

fn told(failure: &Failure<'_>, host: &Fake, text: &str) -> Vec<Diagnosis> {
    diagnose(failure, &lines(&printed(text)), host)
}

/// Each output, alone and in front of a shell's own last words, is told as `id`,
/// in words that hold `word`.
#[track_caller]
fn all_tell(failure: &Failure<'_>, host: &Fake, id: &str, word: &str, outputs: &[&str]) {
    for output in outputs {
        for text in [(*output).to_owned(), format!("building\n{output}\nmake: *** Error 1")] {
            let found = told(failure, host, &text);
            let first = found.first().unwrap_or_else(|| panic!("nothing is told of\n{text}"));
            assert_eq!(first.id, id, "{text}\n{found:?}");
            assert!(first.message.contains(word) || first.hint.contains(word), "{first:?}");
        }
    }
}

#[track_caller]
fn none_tells(failure: &Failure<'_>, host: &Fake, outputs: &[&str]) {
    for output in outputs {
        let found = told(failure, host, output);
        assert!(found.is_empty(), "of\n{output}\n{found:?}");
    }
}

#[test]
fn the_data_file_is_well_formed() {
    let text = include_str!("../../../data/diagnosis.toml");
    let patterns = patterns::parse(text).expect("the data file");
    assert!(!patterns.is_empty());
    assert!(patterns::parse(&text.replace("version = 1", "version = 2")).is_err());
    assert!(patterns::parse(&text.replacen("role = ", "rolle = ", 1)).is_err());
}

#[test]
fn every_pattern_has_its_section_in_the_documents() {
    patterns::all().iter().for_each(patterns::Pattern::check);
    let page = include_str!("../../../../docs/diagnosis.md");
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let mut ids: Vec<String> = Vec::new();
    for pattern in patterns::all() {
        let section = format!("`{}`", pattern.id);
        assert!(sections.contains(&section.as_str()), "no section {section} in docs/diagnosis.md");
        ids.push(section);
    }
    for section in sections {
        assert!(ids.iter().any(|id| id == section), "no pattern is called {section}");
    }
}

#[test]
fn a_program_that_only_the_caller_has() {
    let host = Fake { files: &["/home/ann/bin/foo"], ..Fake::default() };
    let outputs = [
        "sh: 1: foo: not found",
        "./build.sh: 12: foo: not found",
        "sh: foo: not found",
        "npm error sh: 1: foo: not found",
        "bash: line 1: foo: command not found",
        "bash: foo: command not found",
        "/bin/bash: line 7: foo: command not found",
        "zsh:1: command not found: foo",
        "fish: Unknown command: foo",
        "exec: foo: not found",
        "env: 'foo': No such file or directory",
        "/usr/bin/env: ‘foo’: No such file or directory",
        "env: foo: No such file or directory",
        "timeout: failed to run command ‘foo’: No such file or directory",
        "nohup: failed to run command 'foo': No such file or directory",
        "nice: ‘foo’: No such file or directory",
        "setsid: failed to execute foo: No such file or directory",
        "xargs: foo: No such file or directory",
        "make: foo: No such file or directory",
        "make[2]: foo: No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory: 'foo'",
        "E   FileNotFoundError: [Errno 2] No such file or directory: 'foo'",
        "Error: spawn foo ENOENT\n    at ChildProcess._handle.onexit (node:internal/child_process:285:19)",
        "Error: spawnSync foo ENOENT",
        "2026/01/02 03:04:05 exec: \"foo\": executable file not found in $PATH",
        "Exception in thread \"main\" java.io.IOException: Cannot run program \"foo\": error=2, No such file or directory",
        "Can't exec \"foo\": No such file or directory at -e line 1.",
        "x.rb:1:in `spawn': No such file or directory - foo (Errno::ENOENT)",
        "error: could not execute process `foo --edition 2024` (never executed)",
        "error: linker `foo` not found",
    ];
    all_tell(&command(), &host, "on-host-not-inside", "`/home/ann/bin/foo`", &outputs);
    all_tell(&command(), &host, "on-host-not-inside", "tool homes", &outputs);
    none_tells(&command(), &Fake::default(), &outputs);
    let interpreter = Fake { files: &["/home/ann/py/python"], ..Fake::default() };
    let output =
        "bash: line 1: ./x.py: /home/ann/py/python: bad interpreter: No such file or directory";
    all_tell(&command(), &interpreter, "on-host-not-inside", "/home/ann/py/python", &[output]);
}

#[test]
fn a_file_that_only_the_caller_has() {
    let host = Fake {
        files: &["/srv/repo/.env", ".env", "/srv/repo/a b.csv", "node_modules/@scope/left"],
        ..Fake::default()
    };
    let outputs = [
        "cat: /srv/repo/.env: No such file or directory",
        "cat: .env: No such file or directory",
        "ls: cannot access '/srv/repo/.env': No such file or directory",
        "cp: cannot stat '.env': No such file or directory",
        "bash: line 1: .env: No such file or directory",
        "sh: 1: cannot open .env: No such file",
        "sh: 1: .: cannot open .env: No such file",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/repo/.env'",
        "E       FileNotFoundError: [Errno 2] No such file or directory: '/srv/repo/a b.csv'",
        "Error: ENOENT: no such file or directory, open '/srv/repo/.env'",
        "panic: open /srv/repo/.env: no such file or directory",
        "Error: Cannot find module '@scope/left/sub'",
        "Cannot find module '@scope/left' from 'src/a.test.js'",
        "Error [ERR_MODULE_NOT_FOUND]: Cannot find package '@scope/left' imported from /srv/repo/a.mjs",
    ];
    all_tell(&command(), &host, "on-host-not-inside", "checkout", &outputs);
    all_tell(&check(), &host, "on-host-not-inside", "what", &outputs);
    none_tells(&command(), &Fake::default(), &outputs);
    let home = Fake { files: &["/home/ann/data.csv"], ..Fake::default() };
    let output = "cat: /home/ann/data.csv: No such file or directory";
    all_tell(&command(), &home, "on-host-not-inside", "is in your home", &[output]);
}

#[test]
fn a_name_that_was_not_resolved() {
    let named = [
        "curl: (6) Could not resolve host: name.example",
        "  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0curl: (6) Could not resolve host: name.example",
        "fatal: unable to access 'https://name.example/a/': Could not resolve host: name.example",
        "  [6] Couldn't resolve host name (Could not resolve host: name.example)",
        "warning: spurious network error (3 tries remaining): [6] Could not resolve hostname (Could not resolve host: name.example)",
        "ssh: Could not resolve hostname name.example: Temporary failure in name resolution",
        "wget: unable to resolve host address ‘name.example’",
        "Error: getaddrinfo EAI_AGAIN name.example",
        "Error: getaddrinfo ENOTFOUND name.example",
        "  [cause]: Error: getaddrinfo EAI_AGAIN name.example",
        "npm error code EAI_AGAIN\nnpm error syscall getaddrinfo\nnpm error request to https://name.example/a failed, reason: getaddrinfo EAI_AGAIN name.example",
        "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='name.example', port=443): Max retries exceeded with url: / (Caused by NameResolutionError(\"<x>: Failed to resolve 'name.example' ([Errno -3] Temporary failure in name resolution)\"))",
        "go: a.example/b: Get \"https://name.example\": dial tcp: lookup name.example on [::1]:53: dial udp [::1]:53: connect: network is unreachable",
        "dial tcp: lookup name.example: no such host",
        "java.net.UnknownHostException: name.example",
        "E: Failed to fetch http://name.example/a  Temporary failure resolving 'name.example'",
        "psql: error: could not translate host name \"name.example\" to address: Temporary failure in name resolution",
        "ping: name.example: Temporary failure in name resolution",
        "ping: name.example: Name or service not known",
    ];
    all_tell(&command(), &Fake::default(), "name-not-resolved", "`name.example`", &named);
    let nameless = [
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<x>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/a/\nERROR: Could not find a version that satisfies the requirement a\nERROR: No matching distribution found for a",
        "npm error code ENOTFOUND",
        "API Error: Can't reach the API server — check your internet or DNS (EAI_AGAIN)",
        "error sending request for url (https://name.example/): client error (Connect): dns error: failed to lookup address information: Temporary failure in name resolution",
    ];
    for outputs in [&named[..], &nameless] {
        all_tell(&command(), &Fake::default(), "name-not-resolved", "`--net open`", outputs);
        all_tell(&check(), &Fake::default(), "name-not-resolved", "a check has no", outputs);
        none_tells(&Failure { network: Network::Open, ..command() }, &Fake::default(), outputs);
    }
}

#[test]
fn a_machine_that_was_not_reached() {
    let outputs = [
        "OSError: [Errno 101] Network is unreachable",
        "ssh: connect to host 192.0.2.1 port 22: Network is unreachable",
        "bash: connect: Network is unreachable",
        "Error: connect ENETUNREACH 192.0.2.1:80 - Local (0.0.0.0:0)",
        "curl: (7) Failed to connect to 192.0.2.1 port 80 after 0 ms: Couldn't connect to server",
        "dial tcp 192.0.2.1:443: connect: network is unreachable",
        "Error: tcp connect error: Network is unreachable (os error 101)",
        "  Cannot initiate the connection to a.example:80 (192.0.2.1). - connect (101: Network is unreachable)",
        "Caused by:\n  failed to download from `https://a.example/config.json`",
        "Caused by:\n  download of config.json failed",
        "API Error: Connection refused — a firewall or proxy may be blocking it (ECONNREFUSED)",
    ];
    all_tell(&command(), &Fake::default(), "network-unreachable", "`--net open`", &outputs);
    all_tell(&check(), &Fake::default(), "network-unreachable", "a check has no", &outputs);
    none_tells(&Failure { network: Network::Open, ..command() }, &Fake::default(), &outputs);
}

#[test]
fn a_server_of_the_hosts_loopback() {
    let host = Fake { port: Some(5432), ..Fake::default() };
    let outputs = [
        "Error: connect ECONNREFUSED 127.0.0.1:5432",
        "    Error: connect ECONNREFUSED ::1:5432",
        "curl: (7) Failed to connect to localhost port 5432 after 0 ms: Couldn't connect to server",
        "psql: error: connection to server at \"localhost\" (127.0.0.1), port 5432 failed: Connection refused",
        "dial tcp [::1]:5432: connect: connection refused",
        "bash: line 1: /dev/tcp/127.0.0.1/5432: Connection refused",
        "Could not connect to Redis at 127.0.0.1:5432: Connection refused",
        "redis.exceptions.ConnectionError: Error 111 connecting to localhost:5432. Connection refused.",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=5432): Max retries exceeded with url: / (Caused by NewConnectionError('<x>: [Errno 111] Connection refused'))",
    ];
    all_tell(&command(), &host, "network-unreachable", "port 5432 of the host", &outputs);
    all_tell(&check(), &host, "network-unreachable", "start the server", &outputs);
    none_tells(&Failure { network: Network::Open, ..command() }, &host, &outputs);
    none_tells(&command(), &Fake::default(), &outputs);
}

#[test]
fn a_login_that_stays_in_the_home() {
    for (word, outputs) in [
        (
            "`claude setup-token`",
            &[
                "Invalid API key · Please run /login",
                "Not logged in · Please run /login",
                "Please run /login",
                "Invalid API key · Fix external API key",
            ][..],
        ),
        (
            "the agent is not logged in",
            &[
                "ERROR: Missing environment variable: `OPENAI_API_KEY`.",
                "ERROR: unexpected status 401 Unauthorized: Missing bearer or basic authentication in header",
                "Not logged in",
                "Error: Not logged in. Run `codex login`.",
            ],
        ),
        (
            "`--env GEMINI_API_KEY`",
            &[
                "Please set an Auth method in your /home/ann/.gemini/settings.json or specify one of the following environment variables before running: GEMINI_API_KEY, GOOGLE_GENAI_USE_VERTEXAI, GOOGLE_GENAI_USE_GCA",
                "When using Gemini API, you must specify the GEMINI_API_KEY environment variable.",
            ],
        ),
        (
            "`--env GH_TOKEN`",
            &[
                "To get started with GitHub CLI, please run:  gh auth login\nAlternatively, populate the GH_TOKEN environment variable with a GitHub API authentication token.",
                "gh: To use GitHub CLI in a GitHub Actions workflow, set the GH_TOKEN environment variable. Example:\n  env:\n    GH_TOKEN: ${{ github.token }}",
            ],
        ),
        (
            "`--env NPM_TOKEN` passes a token on to an `.npmrc` in the repository that names it as `${NPM_TOKEN}`",
            &[
                "npm error code ENEEDAUTH\nnpm error need auth This command requires you to be logged in",
                "npm ERR! code ENEEDAUTH",
            ],
        ),
        (
            "`--env AWS_ACCESS_KEY_ID`",
            &[
                "Unable to locate credentials. You can configure credentials by running \"aws configure\".",
                "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
            ],
        ),
        (
            "`--env ACME_API_KEY`",
            &[
                "Error: ACME_API_KEY is not set",
                "ACME_API_KEY environment variable is not set.",
                "KeyError: Environment variable `ACME_API_KEY` is not set",
                "Missing required environment variable: ACME_API_KEY",
            ],
        ),
    ] {
        all_tell(&command(), &Fake::default(), "not-logged-in", word, outputs);
        none_tells(&check(), &Fake::default(), outputs);
    }
}

#[test]
fn a_login_that_was_passed_on_is_not_asked_for() {
    for (name, output) in [
        ("ANTHROPIC_API_KEY", "Invalid API key · Please run /login"),
        ("CODEX_API_KEY", "Not logged in"),
        (
            "GEMINI_API_KEY",
            "When using Gemini API, you must specify the GEMINI_API_KEY environment variable.",
        ),
        ("GH_TOKEN", "To get started with GitHub CLI, please run:  gh auth login"),
        ("NPM_TOKEN", "npm error code ENEEDAUTH"),
        ("AWS_PROFILE", "Unable to locate credentials"),
        ("ACME_API_KEY", "Error: ACME_API_KEY is not set"),
    ] {
        let early = format!("{output}{}", "\nmore".repeat(20));
        none_tells(&command(), &Fake::default(), &[&early]);
        let env = [(OsString::from(name), OsString::from("x"))];
        none_tells(&Failure { env: &env, ..command() }, &Fake::default(), &[output]);
        let env = [(OsString::from("OTHER"), OsString::from("x"))];
        assert_eq!(told(&Failure { env: &env, ..command() }, &Fake::default(), output).len(), 1);
    }
}

#[test]
fn a_toolchain_whose_home_is_outside() {
    for (home, outputs) in [
        (
            "~/.rustup/toolchains",
            &[
                "error: rustup could not choose a version of cargo to run, because one wasn't specified explicitly, and no default is configured.\nhelp: run 'rustup default stable' to download the latest stable release of Rust and set it as your default toolchain.",
                "error: no default toolchain configured",
                "error: no override and no default toolchain set",
                "error: toolchain 'stable-x86_64-unknown-linux-gnu' is not installed",
                "info: syncing channel updates for nightly-x86_64-unknown-linux-gnu\nerror: could not download file from 'https://a.example/b' to '/home/ann/.rustup/tmp/c': error downloading file",
            ][..],
        ),
        (
            "~/.nvm/versions",
            &["N/A: version \"v20\" is not yet installed.", "nvm: version \"20\" is not installed"],
        ),
        (
            "~/.local/share/fnm/node-versions",
            &[
                "error: Requested version v20.x is not currently installed",
                "error: We can't find the necessary environment variables to replace the Node version.",
            ],
        ),
        (
            "~/.volta/tools",
            &["Volta error: Node is not available.", "error: Node is not available."],
        ),
        (
            "~/.pyenv/versions",
            &[
                "pyenv: version `3.12.1' is not installed (set by /srv/repo/.python-version)",
                "pyenv: python: command not found",
            ],
        ),
        (
            "~/.local/share/uv/python",
            &[
                "error: No interpreter found for Python 3.12 in virtual environments, managed installations, or search path",
            ],
        ),
        (
            "/home/ann/.nvm/nvm.sh",
            &[
                "bash: line 1: /home/ann/.nvm/nvm.sh: No such file or directory",
                "dash: 1: .: cannot open /home/ann/.nvm/nvm.sh: No such file",
                "sh: 1: .: Can't open /home/ann/.nvm/nvm.sh",
            ],
        ),
        (
            "/home/ann/.pyenv/libexec/pyenv",
            &[
                "/usr/local/bin/python3: line 21: /home/ann/.pyenv/libexec/pyenv: No such file or directory",
            ],
        ),
    ] {
        let host =
            Fake { files: std::slice::from_ref(Box::leak(Box::new(home))), ..Fake::default() };
        all_tell(&command(), &host, "toolchain-home", home, outputs);
        all_tell(&check(), &host, "toolchain-home", home, outputs);
        none_tells(&command(), &Fake::default(), outputs);
    }
}

#[test]
fn a_path_that_can_not_be_written() {
    let system = [
        "touch: cannot touch '/usr/x': Read-only file system",
        "mkdir: cannot create directory ‘/usr/x’: Read-only file system",
        "cp: cannot create regular file '/usr/x': Read-only file system",
        "sh: 1: cannot create /usr/x: Read-only file system",
        "bash: line 1: /usr/x: Read-only file system",
        "fatal: cannot mkdir /usr/x: Read-only file system",
        "OSError: [Errno 30] Read-only file system: '/usr/x'",
        "ERROR: Could not install packages due to an OSError: [Errno 30] Read-only file system: '/usr/x'",
        "Error: EROFS: read-only file system, open '/usr/x'",
        "npm error rofs EROFS: read-only file system, mkdir '/usr/x'",
        "mkdir /usr/x: read-only file system",
        "error: failed to write: Read-only file system (os error 30) at path \"/usr/x\"",
    ];
    all_tell(&command(), &Fake::default(), "read-only", "`/usr/x`", &system);
    let relative = [
        "touch: cannot touch 'x': Read-only file system",
        "sh: 1: cannot create x: Read-only file system",
        "Error: EROFS: read-only file system, mkdir 'x'",
        "fatal: Unable to create '/srv/repo/.git/index.lock': Read-only file system",
        "fatal: cannot lock ref 'refs/heads/z': Unable to create '/srv/repo/.git/refs/heads/z.lock': Read-only file system",
        "error: failed to create directory `/srv/repo/target`\n\nCaused by:\n  Read-only file system (os error 30)",
        "mkdir: Read-only file system at -e line 1.",
    ];
    let read_only = Failure { read_only: true, ..command() };
    all_tell(&read_only, &Fake::default(), "read-only", "`--read-only`", &relative);
    none_tells(&command(), &Fake::default(), &relative);
    let own = ["touch: cannot touch '/tmp/x': Read-only file system"];
    none_tells(&read_only, &Fake::default(), &own);
    none_tells(&command(), &Fake::default(), &own);
}

#[test]
fn sockets_that_are_withheld() {
    let docker = [
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "ERROR: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is correct",
        "dial unix /var/run/docker.sock: connect: no such file or directory",
        "Error: connect ENOENT /var/run/docker.sock",
        "docker.errors.DockerException: Error while fetching server API version: ('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))",
        "java.lang.IllegalStateException: Could not find a valid Docker environment. Please see logs",
        "Cannot connect to Podman. Please verify your connection to the Linux system",
        "Error: dial unix /run/user/1000/podman/podman.sock: connect: no such file or directory",
    ];
    all_tell(&command(), &Fake::default(), "docker-socket", "root on the host", &docker);
    let ssh = [
        "Could not open a connection to your authentication agent.",
        "Error connecting to agent: No such file or directory",
        "git@host.example: Permission denied (publickey).",
        "ann@host.example: Permission denied (publickey,password).",
        "Host key verification failed.\nfatal: Could not read from remote repository.",
    ];
    all_tell(&command(), &Fake::default(), "ssh-agent", "`--into REMOTE/BRANCH`", &ssh);
}

#[test]
fn programs_that_refuse_root() {
    let outputs = [
        "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons",
        "[12:12:0101/010203.000000:ERROR:zygote_host_impl_linux.cc(101)] Running as root without --no-sandbox is not supported. See https://a.example",
        "initdb: error: cannot be run as root",
        "\"root\" execution of the PostgreSQL server is not permitted.",
        "configure: error: you should not run configure as root (set FORCE_UNSAFE_CONFIGURE=1)",
        "Error: running as root is not supported",
    ];
    all_tell(&command(), &Fake::default(), "root-refused", "nobody inside is", &outputs);
}

#[test]
fn sandboxes_in_the_sandbox() {
    let outputs = [
        "bwrap: Creating new namespace failed: Operation not permitted",
        "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces.",
        "bwrap: Failed to make / slave: Permission denied",
        "bwrap: setting up uid map: Permission denied",
        "error: bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
        "[7:7:0101/010203.000000:FATAL:zygote_host_impl_linux.cc(132)] No usable sandbox! If you are running on Ubuntu 23.10+",
        "[7:7:0101/010203.000000:FATAL:zygote_host_impl_linux.cc(207)] Failed to move to new namespace: PID namespaces supported, Network namespace supported, but failed: errno = Operation not permitted",
        "Chromium sandboxing failed!",
        "sandbox error: Landlock was not able to fully enforce all sandbox rules",
        "sandbox error: seccomp setup error",
        "error running landlock: Sandbox(LandlockRestrict)",
        "unshare: unshare failed: Operation not permitted",
        "unshare: write failed /proc/self/uid_map: Operation not permitted",
        "cannot clone: Operation not permitted\nError: cannot re-exec process",
        "error: the sandbox can't be had here",
    ];
    all_tell(&command(), &Fake::default(), "nested-sandbox", "`--nested`", &outputs);
    none_tells(&Failure { wall: Wall::Nested, ..command() }, &Fake::default(), &outputs);
    let idle = || Failure { idle: true, ..command() };
    all_tell(&idle(), &Fake::default(), "nested-sandbox", "sandbox off", &outputs);
    let others = [
        "curl: (6) Could not resolve host: name.example",
        "touch: cannot touch '/usr/x': Read-only file system",
    ];
    none_tells(&idle(), &Fake::default(), &others);
}

#[test]
fn disks_that_are_full() {
    let memory = [
        "dd: error writing '/dev/shm/x': No space left on device",
        "OSError: [Errno 28] No space left on device: '/dev/shm/x'",
        "write /dev/shm/x: no space left on device",
        "/usr/bin/ld: final link failed: /dev/shm/x: No space left on device",
    ];
    all_tell(&command(), &Fake::default(), "disk-full", "half of the memory", &memory);
    let disk = [
        "cat: write error: No space left on device",
        "cp: error writing 'x': No space left on device",
        "cp: error writing '/home/ann/x': No space left on device",
        "fatal error: error writing to /tmp/cc.s: No space left on device",
        "OSError: [Errno 28] No space left on device",
        "Error: ENOSPC: no space left on device, write",
        "error: failed to write `/srv/repo/target/x`: No space left on device (os error 28)",
    ];
    all_tell(&command(), &Fake { full: true, ..Fake::default() }, "disk-full", "`dam gc`", &disk);
    none_tells(&command(), &Fake::default(), &disk);
    let full = Fake { full: true, ..Fake::default() };
    none_tells(&command(), &full, &["cp: error writing '/usr/x': No space left on device"]);
    let watches =
        ["Error: ENOSPC: System limit for number of file watchers reached, watch '/srv/repo'"];
    none_tells(&command(), &full, &watches);
}

/// A cause near the end is one, a word in passing is none.
#[test]
fn a_word_in_passing_is_no_cause() {
    let host =
        Fake { files: &["/home/ann/bin/foo", "~/.rustup/toolchains"], port: Some(80), full: true };
    let passing = [
        "test retries_on_read_only_file_system ... ok\ntest result: FAILED. 1 passed; 1 failed",
        "ok 3 - says `Could not resolve host` to the user\nnot ok 4 - adds",
        "ok 3 - curl: (6) Could not resolve host: name.example\nnot ok 4 - adds",
        "tests/a.py::test_x[OSError: [Errno 101] Network is unreachable] PASSED\n1 failed",
        "test curl: (6) Could not resolve host: name.example ... ok",
        "  ✓ bash: connect: Network is unreachable\n  1 failing",
        "expected \"Could not resolve host: name.example\", got nothing",
        "PASS shows \"Please run /login\" when the session is over\nFAIL adds",
        "  ✓ reports Cannot connect to the Docker daemon\n  1 failing",
        "the file foo was not found in the archive",
        "assertion failed: `Connection refused` expected",
        "checking whether the network is unreachable... no\nconfigure: error: no acceptable C compiler found",
        "error: test failed, to rerun pass `--lib`",
        "Read-only file system is what a mount gives with `ro`",
        "# bwrap: see the manual\nexit 1",
        "warning: unused variable: `foo`",
        "docker.sock is mentioned in README.md",
        "ACME_API_KEY is not set, tests of the API are skipped\n1 failed",
        "404 not found",
    ];
    none_tells(&command(), &host, &passing);
}

#[test]
fn what_was_printed_long_before_the_end_is_no_cause() {
    let cause = "touch: cannot touch '/usr/x': Read-only file system\n";
    let after = |lines: usize| format!("{cause}{}", "more\n\n".repeat(lines));
    assert_eq!(told(&command(), &Fake::default(), &after(39)).len(), 1);
    none_tells(&command(), &Fake::default(), &[&after(40)]);
    // The other stream does not count.
    let mut both = printed(cause);
    both.extend((0..100).map(|_| LogLine { at_ms: 1, stream: "out".into(), text: "more".into() }));
    assert_eq!(diagnose(&command(), &lines(&both), &Fake::default()).len(), 1);
}

#[test]
fn at_most_three_are_told_and_each_hint_once() {
    let all = "\
        error: the sandbox can't be had here\n\
        curl: (6) Could not resolve host: a.example\n\
        curl: (7) Failed to connect to 192.0.2.1 port 80 after 0 ms: Couldn't connect to server\n\
        Could not open a connection to your authentication agent.\n\
        touch: cannot touch '/usr/x': Read-only file system\n\
        Cannot connect to the Docker daemon at unix:///var/run/docker.sock.";
    let ids = |text: &str| -> Vec<String> {
        told(&command(), &Fake::default(), text).into_iter().map(|found| found.id).collect()
    };
    assert_eq!(ids(all), ["docker-socket", "ssh-agent", "nested-sandbox"]);
    let network: Vec<&str> = all.lines().skip(1).take(2).collect();
    assert_eq!(ids(&network.join("\n")), ["name-not-resolved"]);
    let host = Fake { files: &["/home/ann/.nvm/nvm.sh"], ..Fake::default() };
    let found =
        told(&command(), &host, "bash: line 1: /home/ann/.nvm/nvm.sh: No such file or directory");
    assert_eq!(found.len(), 1, "{found:?}");
    let logins = "Not logged in · Please run /login\nUnable to locate credentials";
    assert_eq!(ids(logins), ["not-logged-in"]);
}

/// Beginning of the message and part of the hint, for the command and for a check.
#[test]
fn the_words_depend_on_who_failed() {
    let host = Fake {
        files: &["/srv/repo/bin/vite", "/srv/repo/.env", "node_modules/left"],
        port: Some(80),
        full: false,
    };
    for (output, command_says, check_says) in [
        (
            "sh: 1: vite: not found",
            (
                "`vite` was not found inside: `/srv/repo/bin/vite` is in your checkout, but it is not in the base",
                "`--carry` gives",
            ),
            (
                "`vite` was not found inside: `/srv/repo/bin/vite` is in your checkout, but it is not in what is checked",
                "a check sees",
            ),
        ),
        (
            "cat: /srv/repo/.env: No such file or directory",
            ("`/srv/repo/.env` is in your checkout, but it is not in the base", "`--carry` gives"),
            (
                "`/srv/repo/.env` is in your checkout, but it is not in what is checked",
                "commit it, or",
            ),
        ),
        (
            "Error: Cannot find module 'left'",
            (
                "`left` is installed in your checkout, and what is not committed is not inside",
                "`--carry node_modules`",
            ),
            (
                "`left` is installed in your checkout, and what is not committed is not in a check",
                "commit it, or",
            ),
        ),
        (
            "curl: (6) Could not resolve host: a.example",
            ("`a.example` could not be resolved: the task", "`--net open`"),
            ("`a.example` could not be resolved: a check", "in the repository"),
        ),
        (
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
            ("a name could not be resolved: the task", "`--net open`"),
            ("a name could not be resolved: a check", "in the repository"),
        ),
        (
            "wget: connect to 192.0.2.1: Network is unreachable",
            ("`192.0.2.1` could not be reached: the task", "`--net open`"),
            ("another machine could not be reached: a check", "in the repository"),
        ),
        (
            "bash: connect: Network is unreachable",
            ("another machine could not be reached: the task", "`--net open`"),
            ("another machine could not be reached: a check", "in the repository"),
        ),
        (
            "Error: connect ECONNREFUSED 127.0.0.1:80",
            ("the loopback inside is the task's own: what listens on port 80", "`--net open`"),
            ("the loopback inside is the check's own: what listens on port 80", "start the server"),
        ),
    ] {
        for (failure, (message, hint)) in [(command(), command_says), (check(), check_says)] {
            let found = told(&failure, &host, output);
            assert_eq!(found.len(), 1, "{output}\n{found:?}");
            assert!(found[0].message.starts_with(message), "{found:?}");
            assert!(found[0].hint.contains(hint), "{found:?}");
        }
    }
    let home = Fake { files: &["/home/ann/a", "/home/ann/bin/foo"], ..Fake::default() };
    none_tells(&check(), &home, &["cat: /home/ann/a: No such file or directory"]);
    let [found] = &told(&command(), &home, "sh: 1: foo: not found")[..] else { panic!("one") };
    assert!(found.message.ends_with("is outside of what a task sees"), "{found:?}");
    let [found] = &told(&check(), &home, "sh: 1: foo: not found")[..] else { panic!("one") };
    assert!(found.message.ends_with("is outside of what a check sees"), "{found:?}");
    assert!(!found.hint.contains("--carry"), "{found:?}");
}

#[test]
fn the_last_of_several_is_told() {
    let found = told(
        &command(),
        &Fake::default(),
        "curl: (6) Could not resolve host: one.example\ncurl: (6) Could not resolve host: two.example",
    );
    assert!(found[0].message.contains("two.example"), "{found:?}");
}

#[test]
fn colours_progress_and_broken_text_are_no_obstacle() {
    let texts: [&[u8]; 4] = [
        b"\x1b[31mtouch: cannot touch '/usr/x': Read-only file system\x1b[0m",
        b"50 %\r100 %\rtouch: cannot touch '/usr/x': Read-only file system\r",
        b"t\xffuch: cannot touch '/usr/x': Read-only file system",
        b"touch: cannot touch '/usr/\xc3': Read-only file system",
    ];
    for text in texts {
        let printed = [LogLine { at_ms: 1, stream: "out".into(), text: text.to_vec() }];
        let found = diagnose(&command(), &lines(&printed), &Fake::default());
        assert_eq!(found.len(), 1, "{}", String::from_utf8_lossy(text));
    }
    let long = format!("{}curl: (6) Could not resolve host: a.example", "é".repeat(2000));
    none_tells(&command(), &Fake::default(), &[&long]);
    let long = format!("curl: (6) Could not resolve host: {}", "x".repeat(400));
    let found = told(&command(), &Fake::default(), &long);
    assert!(found[0].message.starts_with("a name could not be resolved"), "{found:?}");
}

#[test]
fn what_landlock_keeps_from_being_written_at_level_worktree() {
    let writable = [PathBuf::from("/state/upper")];
    let walled = || Failure { level: Level::Worktree, writable: &writable, ..command() };
    let host = Fake { files: &["/home/ann"], ..Fake::default() };
    for output in [
        "touch: cannot touch '/home/ann/x': Permission denied",
        "sh: 1: cannot create /home/ann/x: Permission denied",
        "bash: line 1: /home/ann/x: Permission denied",
        "PermissionError: [Errno 13] Permission denied: '/home/ann/x'",
        "Error: EACCES: permission denied, open '/home/ann/x'",
        "npm error path /home/ann/x\nnpm error errno -13\nEACCES: permission denied, mkdir '/home/ann/x'",
        "open /home/ann/x: permission denied",
        "error: failed to write `/home/ann/x`: Permission denied (os error 13)",
    ] {
        let found = told(&walled(), &host, output);
        assert_eq!(found.len(), 1, "{output}\n{found:?}");
        assert!(found[0].message.contains("`/home/ann/x`"), "{found:?}");
        assert!(found[0].hint.contains("$TMPDIR"), "{found:?}");
    }
    for output in [
        "touch: cannot touch '/state/upper/x': Permission denied",
        "cat: /etc/shadow: Permission denied",
        "touch: cannot touch '/usr/x': Read-only file system",
        "curl: (6) Could not resolve host: a.example",
    ] {
        assert!(told(&walled(), &host, output).is_empty(), "{output}");
    }
    none_tells(&command(), &host, &["touch: cannot touch '/home/ann/x': Permission denied"]);
}

#[test]
fn what_belongs_to_somebody_else_outside() {
    let outputs = [
        "mkdir: cannot create directory '/home/ann/.npm/x': Value too large for defined data type",
        "sh: 1: cannot create /home/ann/.npm/x: Value too large for defined data type",
        "OSError: [Errno 75] Value too large for defined data type: '/home/ann/.npm/x'",
        "Error: EOVERFLOW: value too large for defined data type, open '/home/ann/.npm/x'",
        "mkdir /home/ann/.npm/x: value too large for defined data type",
    ];
    all_tell(&command(), &Fake::default(), "foreign-owner", "`/home/ann/.npm/x`", &outputs);
    let outputs = ["  Value too large for defined data type (os error 75)"];
    all_tell(&command(), &Fake::default(), "foreign-owner", "a file or directory", &outputs);
    // cargo's first words say less than its last.
    let cargo = "error: failed to download `cfg-if v1.0.5`\n\nCaused by:\n  failed to create directory `/home/ann/.cargo/registry/src/x`\n\nCaused by:\n  Value too large for defined data type (os error 75)";
    let found = told(&command(), &Fake::default(), cargo);
    assert_eq!(found.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), ["foreign-owner"]);
}
