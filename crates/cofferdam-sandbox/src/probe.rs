//! What this machine can do, found out by doing it.
//!
//! Sysctls and version numbers say what should work; a container runtime or an
//! AppArmor profile decides otherwise. So the probe builds the very boundary
//! that a task gets, over a small overlay in the directory that will hold the
//! real ones, and has a program in it write a file.

use std::path::Path;

use crate::{
    Command, Event, Ids, Limits, Mount, Network, SandboxError, Spec, Starter, Wall, landlock_abi,
    view,
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
        mounts,
        network: Network::None,
        wall: Wall::Full,
        writable: vec!["/probe".into()],
        limits: Limits::default(),
        command: Command {
            argv: ["/bin/sh", "-c", "echo ok > /probe/written"].map(Into::into).to_vec(),
            env: view::environment(&person, [], |_| false),
            cwd: "/probe".into(),
            else_cwd: "/probe".into(),
            umask: 0o022,
        },
    };
    let mut running = Starter::start()?.build(&spec)?;
    loop {
        match running.next_event()? {
            Event::Ready => running.go().map_err(ours("start the probe's program"))?,
            Event::Exited { code: Some(0), .. } => break,
            other => return Err(SandboxError::InitDied(format!("the probe's program: {other:?}"))),
        }
    }
    let written =
        std::fs::read(dir.join("upper/written")).map_err(ours("read what the probe wrote"))?;
    if written != b"ok\n" {
        return Err(SandboxError::InitDied("the probe's program wrote something else".into()));
    }
    Ok(Ability { landlock_abi: landlock_abi(), ids })
}
