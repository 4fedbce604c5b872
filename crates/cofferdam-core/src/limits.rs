//! A task's limits: what was asked for, what the repository asks for, and who sees
//! to each of them here.

use std::path::Path;

use bytesize::ByteSize;
use cofferdam_sandbox::limits::{Group, Rung, remove_group};
use cofferdam_sandbox::{Limits, Starter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::IoContext;
use crate::{Error, TaskDir};

/// What `--require` calls Landlock, which is no limit.
pub const LANDLOCK: &str = "landlock";

/// How many processes a task may have that does not say.
pub const PIDS: u64 = 4096;

/// A limit that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitReport {
    /// `memory`, `cpus`, `pids` or `disk`.
    pub name: String,
    /// How much, for people.
    pub value: String,
    /// Who sees to it: `cgroup-v2`, `cgroup-v1`, `rlimit`, `affinity` or `accounting`.
    pub rung: String,
}

/// The limits of one context, in force as long as this lives.
#[derive(Debug, Default)]
pub struct InForce {
    group: Group,
    /// What pid 1 has to see to.
    pub rest: Limits,
    /// What is told.
    pub report: Vec<LimitReport>,
}

impl InForce {
    /// Whether the kernel does when memory runs out.
    pub(crate) fn kernel_kills(&self) -> bool {
        self.group.holds_memory()
    }

    /// Whether the kernel killed a process for want of memory.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        self.group.ran_out_of_memory()
    }
}

/// Puts limits on what `starter` is going to start.
///
/// # Errors
/// [`Error::LimitNotEnforced`] when one of `required` can't be enforced by the kernel
/// here; [`Error::Io`] when it can't be written down what was made.
pub fn apply(
    starter: &Starter,
    dir: &TaskDir,
    name: &str,
    limits: &Limits,
    required: &[String],
) -> Result<InForce, Error> {
    let mut group = Group::create(&format!("dam-{name}"), limits);
    let dirs: Vec<&Path> = group.dirs().collect();
    if !dirs.is_empty() {
        // Somebody has to remove them when we can't.
        let text: String = dirs.iter().map(|dir| format!("{}\n", dir.display())).collect();
        std::fs::write(dir.groups(), text).at("write", dir.groups())?;
        if starter.join(&group).is_err() {
            group = Group::default();
        }
    }
    let (rest, rungs) = group.rest(limits);
    for wanted in required.iter().filter(|wanted| *wanted != LANDLOCK) {
        if !rungs.iter().any(|(name, rung)| name == wanted && rung.is_enforced()) {
            let rung = rungs.iter().find(|(name, _)| name == wanted).map(|(_, rung)| *rung);
            return Err(Error::LimitNotEnforced { limit: wanted.clone(), rung });
        }
    }
    let value = |name: &str| match name {
        "memory" => size(limits.memory.unwrap_or_default()),
        "cpus" => cpus(limits.cpus.unwrap_or_default()),
        "disk" => size(limits.disk.unwrap_or_default()),
        _ => limits.pids.unwrap_or_default().to_string(),
    };
    let report = |(name, rung): &(&'static str, Rung)| LimitReport {
        name: (*name).to_owned(),
        value: value(name),
        rung: rung.as_str().to_owned(),
    };
    let report = rungs.iter().map(report).collect();
    Ok(InForce { group, rest, report })
}

/// Removes the groups of a task whose supervisor died before it could.
pub(crate) fn forget_groups(dir: &TaskDir) {
    let Ok(text) = std::fs::read_to_string(dir.groups()) else { return };
    for path in text.lines().map(Path::new) {
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("dam-"));
        if ours && path.is_absolute() && path.join("cgroup.procs").exists() {
            remove_group(path);
        }
    }
    let _ = std::fs::remove_file(dir.groups());
}

/// The smaller of each.
#[must_use]
pub(crate) fn tighter(one: Limits, other: Limits) -> Limits {
    let less = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    Limits {
        memory: less(one.memory, other.memory),
        cpus: less(one.cpus, other.cpus),
        pids: less(one.pids, other.pids),
        disk: less(one.disk, other.disk),
    }
}

/// A size as a person writes it: `200MiB`, `4GiB`, `512K`.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write it like `200MiB` or `4GiB`");
    let size = text.parse::<ByteSize>().map_err(|_| wrong())?.as_u64();
    if size == 0 { Err(wrong()) } else { Ok(size) }
}

/// A number of processors as a person writes it, `2` or `0.5`, in thousandths.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse_cpus(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a number of processors; write it like `2` or `0.5`");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || whole.is_empty() || part.len() > 3 {
        return Err(wrong());
    }
    let thousandths: u64 = format!("{part:0<3}").parse().map_err(|_| wrong())?;
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    match whole.checked_mul(1000).and_then(|cpus| cpus.checked_add(thousandths)) {
        None | Some(0) => Err(wrong()),
        Some(cpus) => Ok(cpus),
    }
}

/// A size for people.
#[must_use]
pub fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn cpus(thousandths: u64) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_processors_as_people_write_them() {
        assert_eq!(parse_size("200MiB"), Ok(200 << 20));
        assert_eq!(parse_size("4 GiB"), Ok(4 << 30));
        assert_eq!(parse_size("1000"), Ok(1000));
        for wrong in ["", "0", "-1", "many", "4 GiBs", "1e30GiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_cpus("2"), Ok(2000));
        assert_eq!(parse_cpus("0.5"), Ok(500));
        assert_eq!(cpus(1500), "1.5");
        for wrong in ["", "0", "0.0", "-1", "x", "1.2345", "99999999999999999999", ".5"] {
            assert!(parse_cpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn of_two_limits_the_tighter_counts() {
        let one = Limits { memory: Some(5), cpus: None, pids: Some(9), disk: None };
        let other = Limits { memory: Some(7), cpus: Some(1), pids: Some(3), disk: Some(2) };
        let both = Limits { memory: Some(5), cpus: Some(1), pids: Some(3), disk: Some(2) };
        assert_eq!(tighter(one, other), both);
    }
}
