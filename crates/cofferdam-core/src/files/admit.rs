//! Admission of a task on files: what it is to make is known, and what is there now.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use cofferdam_sandbox::Network;
use cofferdam_sandbox::process::boot_id;

use super::{Files, Mode, Output, OutputFact, place as opened};
use crate::admit::{
    Admitted, Reserved, can_stand, default_name, fresh_id, give, ids_of, limit, reserve,
};
use crate::config::{Asks, Config};
use crate::context::{Place, not_ours};
use crate::control::Control;
use crate::error::IoContext;
use crate::facts::Facts;
use crate::input::clean;
use crate::report::{Meter, Reporter};
use crate::request::{Level, Request, SourceRef};
use crate::{Dam, Error, boundary};

/// See [`Output::parse`].
pub(super) fn parse(text: &OsStr, dir: &Path, said: &str) -> Result<Output, Error> {
    let shown = text.to_string_lossy().into_owned();
    let usage = |why: &str| Error::Usage {
        message: format!("`{said} {shown}`: {why}"),
        hint: Some(format!("`{said} FILE=/srv/reports/FILE`")),
    };
    let bytes = text.as_bytes();
    let Some(at) = bytes.iter().position(|byte| *byte == b'=') else {
        return Err(usage("it has to say which file becomes which"));
    };
    let (from, to) = (OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..]));
    let is_dir = from.as_bytes().ends_with(b"/");
    let from = clean(Path::new(from));
    let inside = from.components().all(|part| matches!(part, Component::Normal(_)));
    if !inside || from.as_os_str().is_empty() {
        return Err(usage("the file that is made has to be a path inside of the context"));
    }
    if to.is_empty() || (to.as_bytes().ends_with(b"/") && !is_dir) {
        return Err(usage("it has to become a file; `DIR/=TO` is for a directory"));
    }
    let mode = if is_dir { Mode::Tree } else { Mode::File };
    Ok(Output { from, to: clean(&dir.join(to)), mode })
}

/// See [`crate::admit`].
pub(crate) fn admit<'a>(
    dam: &'a mut Dam,
    dir: &Path,
    mut request: Request,
    control: Control,
    reporter: &'a dyn Reporter,
) -> Result<Admitted<'a, Files>, Error> {
    if request.level != Level::Sandbox {
        let message = format!("a task on files can't be had at level `{}`", request.level);
        return Err(Error::usage(message, "level `sandbox` has it"));
    }
    limit(dam, &mut request, &Config::default());
    let asks = Asks { carry: Vec::new(), ..dam.own.asks.clone() };
    give(&asks, &mut request, dir, reporter)?;
    if request.network_is_default && dam.own.offline {
        request.network = Network::None;
    }
    let boundary = boundary::of_level(request.level);
    can_stand(boundary, &request)?;
    let source = match &request.source {
        SourceRef::Dir(dir) => Some(dir.clone()),
        _ => None,
    };
    let owner_of = source.as_deref().unwrap_or(dam.dir());
    let ids = ids_of(owner_of, &request)?;
    let mut place = match &source {
        Some(dir) => Place::of_dir(dam, dir, ids)?,
        None => Place::of_files(dam, ids)?,
    };
    place.outputs = request.outputs.iter().map(|output| place.top.join(&output.from)).collect();
    check(dam, &place, &request)?;
    let of_state = |path: &Path| {
        let message = format!("`{}` lies in the state directory", path.display());
        Err(Error::usage(message, None))
    };
    if let Some(output) = request.outputs.iter().find(|output| output.to.starts_with(dam.dir())) {
        return of_state(&output.to);
    }
    for output in request.outputs.iter().filter(|output| output.mode == Mode::Tree) {
        let to = opened::Place::open(output)?;
        if let Some(why) = not_ours(dam, to.path(), &place.person) {
            let to = to.path().display();
            return Err(Error::usage(format!("`{to}` can't be replaced: {why}"), None));
        }
    }
    let mut outputs = Vec::new();
    let mut meter = Meter::begin(reporter, "looking at what is there");
    for output in &request.outputs {
        outputs.push(look(output, &mut meter, &control)?);
    }
    if outputs.len() > 1 && outputs.iter().any(|output| output.mode == Mode::Tree) {
        return Err(Error::usage(
            "a directory lands as one step, and nothing else with it",
            "let the command make one directory of all of it, or run it twice",
        ));
    }
    for (number, output) in outputs.iter().enumerate() {
        if outputs[..number].iter().any(|other| other.place == output.place) {
            let message = format!("two outputs become `{}`", output.place.display());
            return Err(Error::usage(message, None));
        }
        if output.place.starts_with(dam.dir()) {
            return of_state(&output.place);
        }
    }
    let id = fresh_id()?;
    let name = match &request.name {
        Some(name) => name.clone(),
        None => default_name(&request, &id),
    };
    let facts = Facts {
        outputs,
        ids: Some(ids),
        cwd: Some(cwd_in(&place, dir)),
        boot: Some(boot_id().at("read", "/proc")?),
        isolation: Some(boundary.isolation(&request, &place)),
        ..Facts::default()
    };
    Ok(match reserve(dam, request, (id, name), facts, "")? {
        Reserved::Earlier(task) => Admitted::Earlier(task),
        Reserved::Own(own) => {
            Admitted::Own(Box::new(own.into_job(dam, Files, place, control, reporter)), ())
        }
    })
}

/// Where a command begins: where its caller is, in a directory that it is about.
fn cwd_in(place: &Place, dir: &Path) -> PathBuf {
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    if dir.starts_with(&place.top) { dir } else { place.top.clone() }
}

/// What is at the place of an output now.
pub(super) fn look(
    output: &Output,
    meter: &mut Meter<'_>,
    control: &Control,
) -> Result<OutputFact, Error> {
    if output.mode == Mode::Patch {
        let place = std::fs::canonicalize(&output.to).at("find", &output.to)?;
        let (from, mode) = (output.from.clone(), output.mode);
        return Ok(OutputFact { from, place, mode, way: None, before: None, result: None });
    }
    let place = opened::Place::open(output)?;
    let mut read = 0;
    // What others add to records meanwhile is no matter.
    let before = match output.mode {
        Mode::Append => None,
        Mode::File | Mode::Tree | Mode::Patch => {
            let seen = place.look(&mut |totals| {
                read += totals.bytes;
                meter.at(read >> 20, 0);
                control.interrupts() == 0
            });
            if seen.is_err() && control.interrupts() > 0 {
                return Err(Error::Interrupted);
            }
            seen?
        }
    };
    Ok(OutputFact {
        from: output.from.clone(),
        place: place.path().to_owned(),
        mode: output.mode,
        way: place.way(),
        before,
        result: None,
    })
}

/// Refuses inputs and outputs that are in each other's way.
fn check(dam: &Dam, place: &Place, request: &Request) -> Result<(), Error> {
    let overlap = |one: &Path, other: &Path| one.starts_with(other) || other.starts_with(one);
    for (number, input) in request.inputs.iter().enumerate() {
        // What `dam undo` puts back is ours to give.
        if !input.source.starts_with(dam.versions_dir()) {
            place.check_input(input)?;
        }
        if request.inputs[..number].iter().any(|other| other.dest == input.dest) {
            let message = format!("two inputs are to be at `{}`", input.dest.display());
            return Err(Error::usage(message, "`PATH:DEST` says where one is to be"));
        }
        for (output, from) in request.outputs.iter().zip(&place.outputs) {
            let changes_it = *from == input.dest && input.source.is_file();
            if overlap(from, &input.dest) && !changes_it {
                let message = format!(
                    "`{}` can't be an output: it is, lies in or holds the input `{}`, and \
                     nothing comes out of that",
                    output.from.display(),
                    input.source.display()
                );
                return Err(Error::usage(message, "let the command make it beside the input"));
            }
        }
    }
    for (number, output) in request.outputs.iter().enumerate() {
        let in_the_way = |other: &&Output| overlap(&other.from, &output.from) && **other != *output;
        if let Some(other) = request.outputs[..number].iter().find(in_the_way) {
            let message = format!(
                "`{}` and `{}` can't both be outputs: one holds the other",
                other.from.display(),
                output.from.display()
            );
            return Err(Error::usage(message, None));
        }
    }
    Ok(())
}
