//! Real agent programs do their work inside: Claude Code and Codex, from npm, as a
//! person installs them, against a model that is a script on the loopback.
//!
//! `tests/agents.sh` installs the programs, and `docs/agents.md` shows the commands
//! that are run here.

mod model;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{DONE, Model};

use crate::support::{Done, World, source};

/// A node of nvm with the agents among its packages.
fn agents() -> PathBuf {
    let named = std::env::var_os("DAM_TEST_AGENTS").map(PathBuf::from);
    let place = named.unwrap_or_else(|| {
        let var = |name| std::env::var_os(name).map(PathBuf::from);
        let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
        cache.unwrap_or_default().join("cofferdam-tests/agents")
    });
    let nodes = std::fs::read_dir(place.join("versions/node")).into_iter().flatten();
    let has = |prefix: &Path, program| prefix.join("bin").join(program).exists();
    let found = nodes
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|prefix| ["claude", "codex", "node"].iter().all(|program| has(prefix, program)));
    found.unwrap_or_else(|| {
        panic!(
            "`{}` has no agents: `crates/cofferdam/tests/agents.sh` installs them with npm, or `DAM_TEST_AGENTS` names an nvm directory that has `claude` and `codex`",
            place.display()
        )
    })
}

/// Where the person has the programs.
enum Home {
    /// Packages of the node that nvm manages.
    Nvm,
    /// The prefix that npm's own manual proposes.
    NpmGlobal,
}

/// A world whose person has installed the agents.
fn world(home: &Home) -> World {
    let prefix = agents();
    let mut world = World::new();
    let bin = match home {
        Home::Nvm => {
            let nvm = prefix.ancestors().nth(3).expect("below `versions/node`");
            symlink(nvm, world.home().join(".nvm")).expect("link");
            world.home().join(".nvm").join(prefix.strip_prefix(nvm).expect("below")).join("bin")
        }
        Home::NpmGlobal => {
            symlink(&prefix, world.home().join(".npm-global")).expect("link");
            world.home().join(".npm-global/bin")
        }
    };
    world.prefer(&bin.display().to_string());
    world
}

/// Every name in the home, also behind links, with its type, mode, size and time.
fn fingerprint(world: &World) -> String {
    let form = "%p %y %m %s %T@\\n";
    let output = Command::new("find").arg("-L").arg(world.home()).args(["-printf", form]).output();
    let output = output.expect("find");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Runs `dam run OPTIONS -- AGENT`, where `{model}` stands for the model's address; the
/// home has to stay as it was.
fn run(world: &World, model: &Model, options: &[&str], agent: &[&str]) -> Done {
    let before = fingerprint(world);
    let words = [&["run", "--name", "t"], options, &["--"], agent].concat();
    let done = world.dam(words.iter().map(|word| word.replace("{model}", &model.url())));
    assert_eq!(fingerprint(world), before);
    done
}

/// The options that give Claude Code its key and its model.
const CLAUDE: &[&str] = &[
    "--net",
    "open",
    "--env",
    "ANTHROPIC_API_KEY=dummy-key",
    "--env",
    "ANTHROPIC_BASE_URL={model}",
    // No other server is asked anything.
    "--env",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
    "--check",
    "./ci",
];

/// The options that give Codex its key.
const CODEX: &[&str] = &["--net", "open", "--env", "OPENAI_API_KEY=dummy-key", "--check", "./ci"];

/// No other server is asked anything.
const QUIET: &str = "check_for_update_on_startup = false\nanalytics.enabled = false\n";

/// A provider for Codex, in a file of the person's.
fn codex_config(world: &World, model: &Model) -> String {
    let text = format!(
        r#"model_provider = "here"
{QUIET}
[model_providers.here]
name = "here"
base_url = "{}/v1"
env_key = "OPENAI_API_KEY"
"#,
        model.url()
    );
    world.write("../home/.codex/config.toml", text);
    world.home().join(".codex/config.toml").display().to_string()
}

/// What the model was told about its command: twice it was asked, with the key.
#[track_caller]
fn result(model: &Model, path: &str, header: &str, key: &str) -> String {
    let mut asked = model.asked(path);
    asked.retain(|request| request.body.is_object());
    assert_eq!(asked.len(), 2, "{asked:#?}");
    for request in &asked {
        assert_eq!(request.headers.get(header).map(String::as_str), Some(key));
    }
    let list = if path == "/v1/messages" { "messages" } else { "input" };
    asked[1].body[list].as_array().and_then(|all| all.last()).expect("a result").to_string()
}

#[track_caller]
fn claude_was_told(model: &Model) -> String {
    result(model, "/v1/messages", "x-api-key", "dummy-key")
}

#[track_caller]
fn codex_was_told(model: &Model) -> String {
    result(model, "/v1/responses", "authorization", "Bearer dummy-key")
}

/// The task has landed, and the check was asked.
#[track_caller]
fn landed(world: &World, done: &Done) {
    done.expect_code(0).says("`./ci` passed").says("landed t");
    assert!(done.stdout.contains(DONE), "{}", done.stdout);
    assert_eq!(world.read("a.txt"), "good\n");
    assert_eq!(world.git(["status", "--porcelain"]), "");
    assert_eq!(world.task("t")["checks"][0]["outcome"], "passed");
}

#[test]
fn claude_code_edits_a_file_and_the_change_lands() {
    let world = world(&Home::NpmGlobal);
    // It keeps a state in the home: inside.
    let model = Model::that_runs("echo good > a.txt; cd; ls -A");
    let done = run(&world, &model, CLAUDE, &["claude", "-p", "Fix it", "--allowedTools", "Bash"]);
    landed(&world, &done);
    done.says("tools: node (~/.npm-global)");
    let told = claude_was_told(&model);
    assert!(told.contains(".claude.json"), "{told}");
    assert!(!world.home().join(".claude.json").exists());
    // Nothing that stays has the key.
    let state = world.state().display().to_string();
    assert_eq!(world.sh(&format!("grep -rl dummy-key '{state}' || true")), "");
}

#[test]
fn claude_code_that_asks_nobody_works_also_when_root_starts_dam() {
    let world = world(&Home::Nvm);
    let model = Model::that_runs(
        "test $(id -u) != 0 && echo not root; echo good > a.txt; git commit -qam 'Say good'",
    );
    let agent = ["claude", "--dangerously-skip-permissions", "-p", "Fix it"];
    let done = run(&world, &model, CLAUDE, &agent);
    landed(&world, &done);
    assert_eq!(world.subjects("main"), ["Say good", "first"]);
    let told = claude_was_told(&model);
    assert!(told.contains("not root"), "{told}");
}

#[test]
fn what_claude_code_does_wrong_does_not_land() {
    let world = world(&Home::NpmGlobal);
    let model = Model::that_runs("echo bad > a.txt; git commit -qam 'All tests pass'");
    let done = run(&world, &model, CLAUDE, &["claude", "-p", "Fix it", "--allowedTools", "Bash"]);
    done.expect_code(3).says("`./ci` failed");
    assert_eq!(world.subjects("main"), ["first"]);
    assert_eq!(world.read("a.txt"), "hello\n");
}

#[test]
fn claude_code_tries_again_with_what_the_check_said() {
    let world = world(&Home::NpmGlobal);
    world.script("ci", "! grep bad a.txt");
    world.commit("a check that shows what it found");
    let model = Model::that_runs("grep -q bad a.txt && echo good > a.txt || echo bad news > a.txt");
    let script = "claude -p \"Fix it. What the check said last time: $(cat \"$DAM_FEEDBACK\" 2>/dev/null)\" --allowedTools Bash";
    let options = [CLAUDE, &["--attempts", "3"]].concat();
    let done = run(&world, &model, &options, &["sh", "-c", script]);
    landed(&world, &done);
    let asked = model.asked("/v1/messages");
    assert_eq!(asked.len(), 4, "{asked:#?}");
    let begins = |number: usize| asked[number].body["messages"].to_string();
    assert!(!begins(0).contains("bad news") && begins(2).contains("bad news"), "{}", begins(2));
}

#[test]
fn claude_code_without_its_key_or_without_a_network_is_told_why() {
    let world = world(&Home::NpmGlobal);
    let model = Model::that_runs("true");
    let agent = ["claude", "-p", "Fix it"];
    run(&world, &model, &["--net", "open", "--env", "ANTHROPIC_BASE_URL={model}"], &agent)
        .expect_code(1)
        .says("because: Claude Code is not logged in inside")
        .says("`--env ANTHROPIC_API_KEY` a key");
    world.dam(["drop", "t"]).expect_code(0);
    // It would try for minutes.
    let once = ["--env", "CLAUDE_CODE_MAX_RETRIES=0"];
    run(&world, &model, &[&CLAUDE[2..], &once].concat(), &agent)
        .expect_code(1)
        .says("because: another machine could not be reached: the task has no network")
        .says("`--net open`");
    assert!(model.asked("/v1/messages").is_empty());
}

/// What Codex's own sandbox allows and what it does not: it writes in the home and in
/// `.git` only where there is none.
const STEPS: &str = "echo good > a.txt; touch ~/new && echo home; git commit -qam 'Say good'";

#[test]
fn codex_without_its_own_sandbox_edits_a_file_and_the_change_lands() {
    let world = world(&Home::Nvm);
    let model = Model::that_runs(STEPS);
    let config = codex_config(&world, &model);
    let options = [CODEX, &["--input", &config]].concat();
    let agent = ["codex", "exec", "--sandbox", "danger-full-access", "Fix it"];
    let done = run(&world, &model, &options, &agent);
    landed(&world, &done);
    done.says("tools: node (~/.nvm)");
    let told = codex_was_told(&model);
    assert!(told.contains("home\\"), "{told}");
    assert_eq!(world.subjects("main"), ["Say good", "first"]);
}

#[test]
fn codex_in_its_own_sandbox_works_with_nested() {
    let world = world(&Home::NpmGlobal);
    let model = Model::that_runs(STEPS);
    let config = codex_config(&world, &model);
    let options = [CODEX, &["--nested", "-m", "Say good, too", "--input", &config]].concat();
    let agent = ["codex", "exec", "--sandbox", "workspace-write", "Fix it"];
    let done = run(&world, &model, &options, &agent);
    landed(&world, &done);
    let told = codex_was_told(&model);
    assert!(!told.contains("home\\") && told.contains("Read-only file system"), "{told}");
    assert_eq!(world.subjects("main"), ["Say good, too", "first"]);
}

#[test]
fn codex_in_its_own_sandbox_without_nested_is_told_why_nothing_changed() {
    let world = world(&Home::NpmGlobal);
    let model = Model::that_runs("echo good > a.txt");
    let config = codex_config(&world, &model);
    let options = [CODEX, &["--input", &config]].concat();
    let agent = ["codex", "exec", "--sandbox", "workspace-write", "Fix it"];
    let done = run(&world, &model, &options, &agent);
    // It says that all is well.
    done.expect_code(0).says("empty t: nothing changed");
    done.says("because: a program brings a sandbox of its own").says("hint: `--nested`");
    assert!(codex_was_told(&model).contains("bwrap: "));
    assert_eq!(world.task("t")["diagnosis"][0]["id"], "nested-sandbox");
    assert_eq!(world.subjects("main"), ["first"]);
}

#[test]
fn codex_with_its_own_provider_gets_the_key_that_it_reads_itself() {
    let world = world(&Home::NpmGlobal);
    let model = Model::that_runs(STEPS);
    let config = world.home().join(".codex/config.toml").display().to_string();
    let text = format!("openai_base_url = \"{}/v1\"\n", model.url());
    world.write("../home/.codex/config.toml", text + QUIET);
    let options = ["--net", "open", "--env", "CODEX_API_KEY=dummy-key", "--check", "./ci"];
    let options = [&options[..], &["--input", &config]].concat();
    let agent = ["codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "Fix it"];
    let done = run(&world, &model, &options, &agent);
    landed(&world, &done);
    codex_was_told(&model);
}

#[test]
fn codex_without_its_key_is_told_why() {
    let world = world(&Home::NpmGlobal);
    let model = Model::that_runs("true");
    let config = codex_config(&world, &model);
    let options = ["--net", "open", "--input", &config];
    run(&world, &model, &options, &["codex", "exec", "Fix it"])
        .expect_code(1)
        .says("because: the agent is not logged in inside")
        .says("`--env OPENAI_API_KEY`");
    assert!(model.asked("/v1/responses").is_empty());
}

#[test]
fn the_documents_show_the_commands_of_these_tests() {
    let page = std::fs::read_to_string(source().join("docs/agents.md")).expect("read");
    for shown in [
        "-- claude -p \"Fix it\" --allowedTools Bash",
        "-- claude --dangerously-skip-permissions -p \"Fix it\"",
        "-- codex exec --dangerously-bypass-approvals-and-sandbox \"Fix it\"",
        "-- codex exec --sandbox danger-full-access \"Fix it\"",
        "dam run --nested ",
        "-- codex exec --sandbox workspace-write \"Fix it\"",
        "--input ~/.codex/config.toml",
        "sh -c 'claude -p \"Fix it. What the check said last time: $(cat \"$DAM_FEEDBACK\" 2>/dev/null)\" --allowedTools Bash'",
    ] {
        assert!(page.contains(shown), "docs/agents.md does not show `{shown}`");
    }
}
