//! Whether a command would find its programs inside, without running it.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cofferdam_git::{Objects, PersonConfig, Repository};
use cofferdam_sandbox::Ids;
use cofferdam_sandbox::view::SYSTEM_DIRS;

use crate::boundary::{Boundary, Sandbox};
use crate::context::Place;
use crate::error::IoContext;
use crate::{Dam, Error};

/// How long the first line of a script can be, in bytes (binfmt_script takes 256).
const FIRST_LINE: u64 = 256;
/// How many programs in a row are scripts of another.
const DEPTH: usize = 4;

/// A program that a command needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// Its name, as it was asked for.
    pub program: String,
    /// Where it is inside.
    pub inside: Option<PathBuf>,
    /// Where it is outside.
    pub outside: Option<PathBuf>,
}

/// What a task of the repository that `dir` is in would see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// The programs that the command needs, each the interpreter of the one before.
    pub programs: Vec<Lookup>,
    /// The tool homes, as the first lines of a run list them.
    pub tools: Vec<String>,
}

/// Looks for the programs that `argv` needs.
///
/// # Errors
/// When `dir` is in no repository, or one that can't have a context.
pub fn look_up(dam: &Dam, dir: &Path, argv: &[OsString]) -> Result<Sight, Error> {
    let repo = Repository::find(dir)?;
    let config = PersonConfig::read(&repo)?;
    let owner_of = repo.worktree.clone().unwrap_or_else(|| repo.common_dir.clone());
    let ids = Ids::for_task(&owner_of).at("look at", &owner_of)?;
    let store = dam.store(&repo, &config)?;
    let place = Place::new(dam, &repo, &config, &store, Vec::new(), ids)?;
    let head = repo.resolve("HEAD")?;
    let mut objects = Objects::start(&store)?;
    let tree = head.map(|head| objects.tree_of(&head)).transpose()?;
    let mut in_base = |path: &Path| -> Result<bool, Error> {
        let Some(tree) = &tree else { return Ok(false) };
        let path = vec![path.as_os_str().as_bytes().to_vec()];
        Ok(!objects.entries(tree, &path)?.is_empty())
    };
    let mut seen = |file: &Path| -> Result<bool, Error> {
        if let Ok(below) = file.strip_prefix(&place.top) {
            return in_base(below);
        }
        Ok(SYSTEM_DIRS.iter().any(|system| file.starts_with(system)) || place.tools.hold(file))
    };
    let inside = Sandbox.environment(&place);
    let path_inside = inside.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone());
    let path_outside = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = Vec::new();
    let mut next = argv.first().map(|program| program.to_owned());
    while let Some(program) = next.take().filter(|_| programs.len() < DEPTH) {
        let (inside, outside) = if program.as_bytes().contains(&b'/') {
            let file = clean(&dir.join(&program));
            let there = file.is_file().then(|| file.clone());
            (seen(&file)?.then_some(file), there)
        } else {
            let inside = path_inside.as_deref().and_then(|path| find(&program, path));
            (inside, find(&program, &path_outside))
        };
        if let Some(file) = inside.as_ref().filter(|file| file.is_file()) {
            next = interpreter(file)?;
        }
        programs.push(Lookup { program: program.to_string_lossy().into_owned(), inside, outside });
    }
    Ok(Sight { programs, tools: place.tools.describe(&place.person.home) })
}

/// An absolute path without `.` and `..`.
fn clean(path: &Path) -> PathBuf {
    std::fs::canonicalize(path.parent().unwrap_or(path))
        .map(|parent| parent.join(path.file_name().unwrap_or_default()))
        .unwrap_or_else(|_| path.to_owned())
}

fn find(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).filter(|dir| dir.is_absolute()).map(|dir| dir.join(program)).find(
        |file| {
            let meta = std::fs::metadata(file);
            meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        },
    )
}

/// What the first line of a script names; of `env`, the program that it looks for.
fn interpreter(file: &Path) -> Result<Option<OsString>, Error> {
    let mut begin = Vec::new();
    let open = std::fs::File::open(file).at("read", file)?;
    open.take(FIRST_LINE).read_to_end(&mut begin).at("read", file)?;
    let Some(line) = begin.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let Some(program) = words.next() else { return Ok(None) };
    if !program.ends_with(b"/env") {
        return Ok(Some(OsStr::from_bytes(program).to_owned()));
    }
    let named = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    Ok(named.map(|word| OsStr::from_bytes(word).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_name_interpreters() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let file = temp.path().join("script");
        let names = |text: &str| {
            std::fs::write(&file, text).expect("write");
            interpreter(&file).expect("read").map(|name| name.into_string().expect("UTF-8"))
        };
        assert_eq!(names("#!/bin/sh -e\n"), Some("/bin/sh".into()));
        assert_eq!(names("#!/usr/bin/env node\n"), Some("node".into()));
        assert_eq!(names("#!/usr/bin/env -S A=1 deno run\n"), Some("deno".into()));
        assert_eq!(names("#!\n"), None);
        assert_eq!(names("\u{7f}ELF"), None);
    }
}
