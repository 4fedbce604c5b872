//! What this machine can do, found out by doing it.
//!
//! Sysctls and version numbers say what should work; a container runtime or an
//! AppArmor profile decides otherwise. So the probe builds the very boundary
//! that a task gets, over a small overlay in the directory that will hold the
//! real ones, and has a program in it write a file.

use std::path::Path;

use crate::{
    Command, Event, Ids, Limits, Mount, Network, SandboxError, Spec, Starter, View, Wall,
    landlock_abi, view,
};

/// What the probe found to work.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Ability {
    /// ABI of Landlock; 0 when the kernel has none.
    pub landlock_abi: u32,
    /// As whom a task of this caller would run.
    pub ids: Ids,
}

/// Builds a boundary with its files below `dir` (which must exist) and runs a
/// program in it.
///
/// # Errors
/// [`SandboxError`] naming the step that does not work here.
pub fn run(dir: &Path, ids: Ids) -> Result<Ability, SandboxError> {
    let ours = |step| move |source| SandboxError::Supervisor { step, source };
    for name in ["lower", "upper", "work", "home"] {
        let path = dir.join(name);
        std::fs::create_dir(&path).map_err(ours("make the probe's directories"))?;
        if ids.switch {
            std::os::unix::fs::chown(&path, Some(ids.uid), Some(ids.gid))
                .map_err(ours("hand over the probe's directories"))?;
        }
    }
    let person = view::Person { ids, name: "dam".into(), home: "/home/dam".into() };
    let mut mounts = view::system(&person, Network::None);
    mounts.push(Mount::Bind {
        source: "home".into(),
        dest: person.home.clone(),
        writable: true,
        executable: true,
    });
    mounts.push(Mount::Overlay {
        lower: vec!["lower".into()],
        upper: Some("upper".into()),
        work: Some("work".into()),
        dest: "/probe".into(),
    });
    let spec = Spec {
        ids,
        base_dir: dir.into(),
        view: View::Own { mounts, network: Network::None },
        wall: Wall::Full,
        writable: vec!["/probe".into()],
        limits: Limits::default(),
        command: Command {
            argv: ["/bin/sh", "-c", "echo ok > /probe/written"].map(Into::into).to_vec(),
            env: view::environment(&person, [], |_| None),
            cwd: "/probe".into(),
            else_cwd: "/probe".into(),
            umask: 0o022,
            terminal: false,
        },
    };
    run_program(&spec)?;
    let written =
        std::fs::read(dir.join("upper/written")).map_err(ours("read what the probe wrote"))?;
    if written != b"ok\n" {
        return Err(SandboxError::InitDied("the probe's program wrote something else".into()));
    }
    Ok(Ability { landlock_abi: landlock_abi(), ids })
}

/// As [`run`], with the host's own view: where the kernel has Landlock, the program
/// must be able to write where it may and nowhere else.
///
/// # Errors
/// As [`run`].
pub fn run_in_hosts_view(dir: &Path, ids: Ids) -> Result<Ability, SandboxError> {
    let abi = landlock_abi();
    let own = dir.join("own");
    std::fs::create_dir(&own).map_err(|source| SandboxError::Supervisor {
        step: "make the probe's directory",
        source,
    })?;
    let script = "echo ok > written && { [ \"$0\" = 0 ] || ! ( : > ../outside ) 2>/dev/null; }";
    let spec = Spec {
        ids,
        base_dir: dir.into(),
        view: View::Host,
        wall: Wall::Full,
        writable: vec![own.clone()],
        limits: Limits::default(),
        command: Command {
            argv: ["/bin/sh", "-c", script, &abi.to_string()].map(Into::into).to_vec(),
            env: Vec::new(),
            cwd: own.clone(),
            else_cwd: own,
            umask: 0o022,
            terminal: false,
        },
    };
    run_program(&spec)?;
    Ok(Ability { landlock_abi: abi, ids })
}

fn run_program(spec: &Spec) -> Result<(), SandboxError> {
    let mut running = Starter::start(None)?.build(spec)?;
    loop {
        match running.next_event()? {
            Event::Ready => running.go().map_err(|source| SandboxError::Supervisor {
                step: "start the probe's program",
                source,
            })?,
            Event::Exited { code: Some(0), .. } => return Ok(()),
            Event::Exited { code: Some(code), .. } => return Err(SandboxError::Probe(code)),
            other => return Err(SandboxError::InitDied(format!("the probe's program: {other:?}"))),
        }
    }
}
