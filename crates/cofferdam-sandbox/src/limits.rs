//! What a task may use, and who sees to it.
//!
//! The kernel's own means come first: a control group (version 2 where one is
//! delegated, version 1 as root), a resource limit. Where none can be had, pid 1
//! counts itself and ends the task. Which one is in force is told, and a task can
//! ask for the kernel's.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Resource;
use serde::{Deserialize, Serialize};

/// What a task may use at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Memory of all its processes and of its file systems in memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Processors, in thousandths of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u64>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// What it has on disk, in bytes. Here it is the most that one file can have; the
    /// supervisor counts all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
}

impl Limits {
    /// What `other` says about what is not limited here.
    #[must_use]
    pub fn or(self, other: Limits) -> Limits {
        Limits {
            memory: self.memory.or(other.memory),
            cpus: self.cpus.or(other.cpus),
            pids: self.pids.or(other.pids),
            disk: self.disk.or(other.disk),
        }
    }
}

/// Who sees to a limit, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// A control group of version 2.
    CgroupV2,
    /// A control group of version 1.
    CgroupV1,
    /// A resource limit of the processes, counted for their user namespace.
    Rlimit,
    /// The processors that it is bound to; it can undo that.
    Affinity,
    /// pid 1 (memory, every 50 ms) or the supervisor (disk) counts.
    Accounting,
}

impl Rung {
    /// Its name: `cgroup-v2`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Rung::CgroupV2 => "cgroup-v2",
            Rung::CgroupV1 => "cgroup-v1",
            Rung::Rlimit => "rlimit",
            Rung::Affinity => "affinity",
            Rung::Accounting => "accounting",
        }
    }

    /// Whether the kernel enforces it, whatever the task does.
    #[must_use]
    pub const fn is_enforced(self) -> bool {
        matches!(self, Rung::CgroupV2 | Rung::CgroupV1 | Rung::Rlimit)
    }
}

const PERIOD_US: u64 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Cpu,
}

/// The control groups of one task; removed when dropped.
#[derive(Debug, Default)]
pub struct Group {
    dirs: Vec<(Controller, Rung, PathBuf)>,
}

impl Group {
    /// Makes groups of this name for what is limited, as far as they can be had.
    #[must_use]
    pub fn create(name: &str, limits: &Limits) -> Group {
        let mut group = Group::default();
        let Ok(own) = std::fs::read_to_string("/proc/self/cgroup") else { return group };
        let Ok(mounts) = crate::cgroup::mountinfo() else { return group };
        for (controller, wanted) in
            [(Controller::Memory, limits.memory), (Controller::Cpu, limits.cpus)]
        {
            let Some(value) = wanted else { continue };
            let parents = parents(controller, &own, &mounts);
            let made = parents.into_iter().find_map(|(rung, parent)| {
                let dir = make(controller, rung, &parent, name, value).ok()?;
                Some((controller, rung, dir))
            });
            group.dirs.extend(made);
        }
        group
    }

    /// Takes a process in, and all that it starts from now on.
    ///
    /// # Errors
    /// When the kernel does not let it in.
    pub fn take(&self, pid: u32) -> io::Result<()> {
        self.dirs
            .iter()
            .try_for_each(|(_, _, dir)| std::fs::write(dir.join("cgroup.procs"), pid.to_string()))
    }

    /// The directories, to be removed by somebody else if it comes to that.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.dirs.iter().map(|(_, _, dir)| dir.as_path())
    }

    /// Whether the kernel limits memory by one of them.
    #[must_use]
    pub fn holds_memory(&self) -> bool {
        self.rung(Controller::Memory).is_some()
    }

    /// Whether the kernel killed one of its processes for want of memory.
    #[must_use]
    pub fn ran_out_of_memory(&self) -> bool {
        self.dirs.iter().filter(|(controller, ..)| *controller == Controller::Memory).any(
            |(_, rung, dir)| {
                let file =
                    if *rung == Rung::CgroupV2 { "memory.events" } else { "memory.oom_control" };
                let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
                text.lines().any(|line| {
                    let count = line.strip_prefix("oom_kill ");
                    count.is_some_and(|count| count.trim() != "0")
                })
            },
        )
    }

    fn rung(&self, wanted: Controller) -> Option<Rung> {
        self.dirs.iter().find(|(controller, ..)| *controller == wanted).map(|(_, rung, _)| *rung)
    }

    /// What is left to pid 1, and who sees to each limit.
    #[must_use]
    pub fn rest(&self, limits: &Limits) -> (Limits, Vec<(&'static str, Rung)>) {
        let (memory, cpu) = (self.rung(Controller::Memory), self.rung(Controller::Cpu));
        let mut rungs = Vec::new();
        if limits.memory.is_some() {
            rungs.push(("memory", memory.unwrap_or(Rung::Accounting)));
        }
        if limits.cpus.is_some() {
            rungs.push(("cpus", cpu.unwrap_or(Rung::Affinity)));
        }
        if limits.pids.is_some() {
            rungs.push(("pids", Rung::Rlimit));
        }
        if limits.disk.is_some() {
            rungs.push(("disk", Rung::Accounting));
        }
        let rest = Limits {
            memory: limits.memory.filter(|_| memory.is_none()),
            cpus: limits.cpus.filter(|_| cpu.is_none()),
            ..*limits
        };
        (rest, rungs)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for (_, _, dir) in &self.dirs {
            remove_group(dir);
        }
    }
}

/// Removes a group whose processes have ended; the kernel lets go of the last one a
/// little later.
pub fn remove_group(dir: &Path) {
    let begun = Instant::now();
    while let Err(error) = std::fs::remove_dir(dir) {
        let busy = error.raw_os_error() == Some(libc::EBUSY);
        if !busy || begun.elapsed() > Duration::from_secs(1) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Where a group for this can be made, the best first.
fn parents(controller: Controller, own: &str, mounts: &str) -> Vec<(Rung, PathBuf)> {
    let name = if controller == Controller::Memory { "memory" } else { "cpu" };
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((mount, fs)) = line.split_once(" - ") else { continue };
        let (mut mount, mut fs) = (mount.split(' ').skip(3), fs.split(' '));
        // Of a part of a hierarchy the paths are not those that the kernel says.
        let (Some("/"), Some(point), Some(kind)) = (mount.next(), mount.next(), fs.next()) else {
            continue;
        };
        let options = fs.nth(1).unwrap_or_default();
        match kind {
            "cgroup2" => {
                let below = own.lines().find_map(|line| line.strip_prefix("0::/"));
                let Some(below) = below else { continue };
                let own = Path::new(point).join(below);
                // Beside ours, for ours holds a process and so can't hand on controllers.
                let beside = own.parent().filter(|_| !below.is_empty()).map(Path::to_owned);
                found.extend(beside.into_iter().chain([own]).map(|dir| (Rung::CgroupV2, dir)));
            }
            "cgroup" if options.split(',').any(|option| option == name) => {
                let below = own.lines().find_map(|line| {
                    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                    let ours = controllers.split(',').any(|controller| controller == name);
                    ours.then(|| path.trim_start_matches('/'))
                });
                found.extend(below.map(|below| (Rung::CgroupV1, Path::new(point).join(below))));
            }
            _ => {}
        }
    }
    found.sort_by_key(|(rung, _)| *rung != Rung::CgroupV2);
    found
}

fn make(
    controller: Controller,
    rung: Rung,
    parent: &Path,
    name: &str,
    value: u64,
) -> io::Result<PathBuf> {
    let dir = parent.join(name);
    match std::fs::create_dir(&dir) {
        // The other controller's, in the one hierarchy of version 2.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && rung == Rung::CgroupV2 => {}
        other => other?,
    }
    let set = |file: &str, text: String| std::fs::write(dir.join(file), text);
    let quota = || value.saturating_mul(PERIOD_US / 1000).max(1000);
    let done = match (controller, rung) {
        (Controller::Memory, Rung::CgroupV2) => {
            // Not everywhere there.
            let _ = set("memory.swap.max", "0".into());
            let _ = set("memory.oom.group", "1".into());
            set("memory.max", value.to_string())
        }
        (Controller::Memory, _) => set("memory.limit_in_bytes", value.to_string()).map(|()| {
            let _ = set("memory.memsw.limit_in_bytes", value.to_string());
        }),
        (Controller::Cpu, Rung::CgroupV2) => set("cpu.max", format!("{} {PERIOD_US}", quota())),
        (Controller::Cpu, _) => set("cpu.cfs_period_us", PERIOD_US.to_string())
            .and_then(|()| set("cpu.cfs_quota_us", quota().to_string())),
    };
    if let Err(error) = done {
        let _ = std::fs::remove_dir(&dir);
        return Err(error);
    }
    Ok(dir)
}

/// How much the file systems in memory of a root view of its own hold, in bytes.
pub(crate) fn files_in_memory() -> u64 {
    ["/", "/dev/shm", "/run", "/dev"]
        .iter()
        .filter_map(|path| rustix::fs::statvfs(*path).ok())
        .map(|fs| fs.f_blocks.saturating_sub(fs.f_bfree).saturating_mul(fs.f_frsize))
        .sum()
}

/// How much memory these processes use and `files` hold, in bytes: exactly when it
/// seems to be more than `limit`.
pub(crate) fn memory_in_use(limit: u64, files: u64, pids: &[u32]) -> u64 {
    let page = rustix::param::page_size() as u64;
    let sum = |of: &dyn Fn(&Path) -> Option<u64>| -> u64 {
        pids.iter().filter_map(|pid| of(&Path::new("/proc").join(pid.to_string()))).sum()
    };
    // What is resident and no file's. A page that several share counts for each.
    let resident = |dir: &Path| {
        let text = std::fs::read_to_string(dir.join("statm")).ok()?;
        let mut fields = text.split(' ').skip(1).map(str::parse::<u64>);
        let (resident, shared) = (fields.next()?.ok()?, fields.next()?.ok()?);
        Some(resident.saturating_sub(shared) * page)
    };
    let used = files + sum(&resident);
    if used <= limit {
        return used;
    }
    // Exactly, which takes longer: each page once.
    let exact = |dir: &Path| {
        let text = std::fs::read_to_string(dir.join("smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:"))?;
        Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
    };
    files + sum(&|dir: &Path| exact(dir).or_else(|| resident(dir)))
}

/// Puts on the calling process what it hands on to all that it starts.
pub(crate) fn confine(limits: &Limits) -> io::Result<()> {
    // More than the caller may have can't be had.
    let at_most = |resource: Resource, most: u64| {
        let own = rustix::process::getrlimit(resource);
        let most = own.maximum.map_or(most, |own| own.min(most));
        let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(resource, limit)
    };
    if let Some(most) = limits.pids {
        at_most(Resource::Nproc, most)?;
    }
    if let Some(most) = limits.disk {
        // Space can be had by one call, between two counts.
        at_most(Resource::Fsize, most)?;
    }
    if let Some(most) = limits.cpus {
        let allowed = rustix::thread::sched_getaffinity(None)?;
        let mut set = rustix::thread::CpuSet::new();
        let all: Vec<usize> =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let count = usize::try_from(most.div_ceil(1000)).unwrap_or(usize::MAX);
        // Not all tasks on the same ones.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.subsec_micros());
        let first = usize::try_from(now).unwrap_or(0) % all.len().max(1);
        all.iter().cycle().skip(first).take(count.min(all.len())).for_each(|cpu| set.set(*cpu));
        rustix::thread::sched_setaffinity(None, &set)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_place_for_a_group_comes_first() {
        let own = "4:memory:/user\n1:cpu,cpuacct:/\n0::/slice/ann\n";
        let mounts = "\
            30 20 0:1 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n\
            31 20 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
            32 20 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
            33 20 0:4 /part /elsewhere rw - cgroup cgroup rw,memory\n";
        let found = |controller| {
            parents(controller, own, mounts)
                .into_iter()
                .map(|(rung, dir)| format!("{} {}", rung.as_str(), dir.display()))
                .collect::<Vec<_>>()
        };
        let v2 = [
            "cgroup-v2 /sys/fs/cgroup/unified/slice",
            "cgroup-v2 /sys/fs/cgroup/unified/slice/ann",
        ];
        let memory = found(Controller::Memory);
        assert_eq!(memory[..2], v2);
        assert_eq!(memory[2..], ["cgroup-v1 /sys/fs/cgroup/memory/user"]);
        assert_eq!(found(Controller::Cpu)[2..], ["cgroup-v1 /sys/fs/cgroup/cpu/"]);
        assert_eq!(parents(Controller::Memory, "0::/\n", "")[..], []);
    }

    #[test]
    fn what_no_group_holds_is_left_to_pid_1() {
        let limits = Limits { memory: Some(1), cpus: Some(1500), pids: Some(3), disk: None };
        let (rest, rungs) = Group::default().rest(&limits);
        assert_eq!(rest, limits);
        let names: Vec<_> = rungs.iter().map(|(name, rung)| (*name, rung.as_str())).collect();
        assert_eq!(names, [("memory", "accounting"), ("cpus", "affinity"), ("pids", "rlimit")]);
        let held = (Controller::Memory, Rung::CgroupV1, PathBuf::from("/nowhere/dam-x"));
        let (rest, rungs) = Group { dirs: vec![held] }.rest(&limits);
        assert_eq!(rest.memory, None);
        assert!(rungs[0].1.is_enforced() && !rungs[1].1.is_enforced());
    }

    #[test]
    fn what_a_process_uses_is_counted() {
        let own = [std::process::id()];
        let before = memory_in_use(0, 0, &own);
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = memory_in_use(0, 0, &own);
        assert!(after > before + (32 << 20), "{before} {after} {}", block.len());
    }
}
