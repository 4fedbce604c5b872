//! Random edits, the same ones in a context and outside. Each world takes a row
//! of them, so they are also made on what earlier ones left: deletions, changes
//! of type and delta layers included.

use super::{outside, tree};
use crate::support::{World, levels};

/// xorshift64*: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).expect("31 bits") % bound
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }

    /// Few names, so that files, directories and links meet often.
    fn path(&mut self) -> String {
        let names = ["a", "b", "c", "d", "x.log", "sp ace"];
        let depth = 1 + self.below(3);
        (0..depth).map(|_| self.of(&names)).collect::<Vec<_>>().join("/")
    }

    fn edit(&mut self) -> String {
        let (path, other, number) = (self.path(), self.path(), self.below(1000));
        match self.below(16) {
            0..=2 => format!("mkdir -p \"$(dirname '{path}')\"; echo {number} > '{path}'"),
            3 => format!("echo {number} >> '{path}'"),
            4 => format!("mkdir -p '{path}'"),
            5 => format!("rm -rf '{path}'"),
            6 => format!("rm -rf '{path}'; mkdir -p '{path}'; echo {number} > '{path}/a'"),
            7..=8 => format!("mv '{path}' '{other}'"),
            9 => format!("mv -T '{path}' '{other}'"),
            10 => format!("ln -sfn '{other}' '{path}'"),
            11 => format!("cp -P '{path}' '{other}'"),
            12 => format!("test -f '{path}' && chmod {} '{path}'", self.of(&["755", "644", "700"])),
            13 => format!("rm -rf '{path}'; ln -s '{other}' '{path}'"),
            14 => {
                let pattern = self.of(&["a", "b/", "*.log", "!a", "/c", "d/*", "!*.log", "**/b"]);
                let dir = self.of(&[".", "a", "b", "a/b"]);
                format!("mkdir -p {dir}; echo '{pattern}' >> {dir}/.gitignore")
            }
            _ => format!("touch '{path}'; ln -f '{path}' '{other}'"),
        }
    }

    fn script(&mut self) -> String {
        let count = 4 + self.below(20);
        let edits: Vec<String> = (0..count).map(|_| self.edit()).collect();
        format!("set +e\n{{\n{}\n}} 2>/dev/null; true", edits.join("\n"))
    }
}

#[track_caller]
fn row(seeds: std::ops::Range<u64>) {
    row_at("sandbox", seeds);
}

#[track_caller]
fn row_at(level: &'static str, seeds: std::ops::Range<u64>) {
    let mut world = World::new();
    world.at_level(level);
    // The copy's own housekeeping would still write into it while it is removed.
    world.git(["config", "gc.auto", "0"]);
    for seed in seeds {
        let script = Random::new(seed).script();
        let copy = world.dir().join("outside");
        if copy.exists() {
            std::fs::remove_dir_all(&copy).expect("remove the copy");
        }
        let wanted = outside(&world, &script);
        let done = world.run(&["--no-check", "--name", &format!("seed-{seed}")], &script);
        if done.stderr.contains("is an ignored link in a loop") {
            let said = world.sh_in(&copy, "git add -A 2>&1");
            assert!(said.contains("Too many levels of symbolic links"), "seed {seed}: {said}");
            continue;
        }
        done.expect_code(0);
        if tree(&world, "main") != wanted {
            let diff = world
                .sh("cd ../outside; git fetch -q ../repo main; git diff --raw HEAD FETCH_HEAD");
            panic!("seed {seed}: the landed tree is another:\n{diff}\n{script}");
        }
        assert_eq!(world.git(["status", "--porcelain"]), "", "seed {seed}\n{script}");
    }
}

#[test]
fn seeds_60_to_74_at_every_level() {
    for level in levels() {
        row_at(level, 60..75);
    }
}

#[test]
fn seeds_0_to_14() {
    row(0..15);
}

#[test]
fn seeds_15_to_29() {
    row(15..30);
}

#[test]
fn seeds_30_to_44() {
    row(30..45);
}

#[test]
fn seeds_45_to_59() {
    row(45..60);
}
