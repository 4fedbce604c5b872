//! SIGKILL at every failpoint, and what is left of it.

use crate::bed::{Bed, Target, for_each, kill_at, visits};

/// Each failpoint that a landing visits.
fn places(target: Target) -> Vec<String> {
    let bed = Bed::new(target);
    let places = visits(bed.run_command(), bed.world.dir());
    assert_eq!(bed.assert_sound().as_deref(), Some("landed"), "{places:?}");
    places
}

fn killed_at_every_place(target: Target, places: Vec<String>) {
    for_each(places, |place| {
        let bed = Bed::new(target);
        kill_at(bed.run_command(), place);
        bed.assert_recovers();
    });
}

#[test]
fn killed_at_every_step_of_a_landing_on_a_checked_out_branch() {
    let places = places(Target::CheckedOut);
    for state in
        ["queued", "preparing", "running", "harvesting", "verifying", "publishing", "landed"]
    {
        for side in ["before", "after"] {
            let place = format!("ledger:{state}:{side}@1");
            assert!(places.contains(&place), "{place} is not in {places:?}");
        }
    }
    for state in ["intent", "committed"] {
        for side in ["before", "after"] {
            let place = format!("publication:{state}:{side}@1");
            assert!(places.contains(&place), "{place} is not in {places:?}");
        }
    }
    killed_at_every_place(Target::CheckedOut, places);
}

#[test]
fn killed_at_every_step_of_a_landing_on_a_new_branch() {
    killed_at_every_place(Target::NewBranch, places(Target::NewBranch));
}

#[test]
fn killed_at_every_step_of_a_landing_on_a_branch_that_is_not_checked_out() {
    killed_at_every_place(Target::OtherBranch, places(Target::OtherBranch));
}

#[test]
fn killed_at_every_step_of_a_landing_on_a_remote() {
    killed_at_every_place(Target::Remote, places(Target::Remote));
}
