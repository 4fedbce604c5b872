//! Names: every byte but `/` and NUL, and those that git must never check out.

use super::{refused, same};

#[test]
fn names_of_any_bytes() {
    same(
        "printf x > \"$(printf 'old\\nline')\"; printf y > \"$(printf 'old\\377byte')\"",
        r#"for name in 'new\nline' 'tab\there' 'quote"d' "single'd" 'back\\slash' 'raw\377\200' ' lead' 'trail ' '*star' '?[a]' 'caf\303\251' 'cafe\314\201' ':(glob)x' '#hash' '!bang' '-dash' '$HOME' '{a,b}' 'a:b' '\001\177'; do
             n="$(printf -- "$name.")"; printf '%s' "$name" > "./$n"
           done
           printf z >> "$(printf 'old\nline')"; rm "$(printf 'old\377byte')"; mkdir -- -dir "$(printf 'd\nir')"; echo 1 > ./-dir/-f; echo 2 > "$(printf 'd\nir/f')""#,
    );
}

#[test]
fn long_names_and_deep_paths() {
    same(
        "mkdir -p \"$(printf 'd/%.0s' $(seq 100))\"; echo 1 > \"$(printf 'd/%.0s' $(seq 100))f\"",
        r#"long="$(printf 'n%.0s' $(seq 255))"; echo x > "$long"; mkdir "${long%n}d"; echo y > "${long%n}d/$long"
           deep="$(printf 'd/%.0s' $(seq 100))"; echo 2 > "${deep}f"; mkdir -p "${deep}e/e/e"; echo 3 > "${deep}e/e/e/g""#,
    );
}

/// git itself gives up on paths that the kernel does not take.
#[test]
fn a_path_longer_than_the_kernel_takes_is_refused_by_name() {
    refused(
        "true",
        "python3 -c 'import os\nfor i in range(30): os.mkdir(\"d\"*200); os.chdir(\"d\"*200)\nopen(\"f\",\"w\").write(\"x\")'",
        "ddd",
    );
}

#[test]
fn names_that_are_dot_git_somewhere_are_refused() {
    for name in [".GIT", ".Git", "git~1", "GIT~1", ".git.", "$(printf '.g\\342\\200\\214it')"] {
        let script = format!("mkdir -p \"{name}\"; echo x > \"{name}/config\"");
        refused("true", &script, "has a component that is `.git` on some file systems");
    }
    refused("true", "echo x > .GIT", "`.GIT`");
    refused("true", "echo x > 'a\\..\\b'", "leaves the directory");
}

#[test]
fn names_that_only_look_like_it_land() {
    same(
        "true",
        "mkdir .github gitx; echo 1 > .github/x; echo 2 > .gitx; echo 3 > git; echo 4 > gitx/x.git; echo 5 > .gitkeep; echo 6 > 'a\\b'",
    );
}

#[test]
fn a_repository_inside_is_refused_by_name() {
    let words = "`inner/.git` is a repository of its own inside";
    refused("true", "git init -q inner; echo x > inner/x", words);
    // Where it is ignored it is nobody's business.
    same(
        "echo vendor/ >> .gitignore",
        "git init -q vendor/inner; echo x > vendor/inner/x; echo y > a.txt",
    );
}

#[test]
fn gits_own_files_are_no_links() {
    refused("true", "echo x > real; ln -s real .gitmodules", "`.gitmodules` is a symlink");
    refused("true", "ln -sf a.txt .gitignore", "`.gitignore` is a symlink");
}

const SUBMODULE: &str = "git init -q ../sub; cd ../sub; echo s > s; git add s; git -c user.name=A -c user.email=a@b commit -qm s; cd ../repo;
     git -c protocol.file.allow=always submodule --quiet add ../sub mod; mkdir d; git -c protocol.file.allow=always submodule --quiet add ../sub d/mod;
     git commit -qm modules; git submodule --quiet deinit --force --all";

#[test]
fn submodules_stay_where_nothing_changed_inside() {
    same(SUBMODULE, "echo x > a.txt; touch mod; chmod 700 mod; echo y > d/y");
    same(SUBMODULE, "rmdir mod; mkdir mod; rm -r d; mkdir -p d/mod; echo 2 > d/z");
}

#[test]
fn submodules_are_removed() {
    same(SUBMODULE, "git rm -q mod; rm -r d");
    same(SUBMODULE, "rmdir mod; echo file > mod");
}

#[test]
fn changes_inside_of_a_submodule_are_refused_by_name() {
    refused(SUBMODULE, "echo x > mod/x", "`mod` is a submodule");
    refused(SUBMODULE, "rmdir d/mod; mkdir d/mod; echo x > d/mod/x", "`d/mod` is a submodule");
}
