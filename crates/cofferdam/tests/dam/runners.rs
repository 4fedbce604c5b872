//! Test runners of languages, with the toolchains of a person's home, as task and as
//! check: no option is needed, and the home stays as it was.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{World, fingerprint};

/// What a program prints, which has to be there.
#[track_caller]
fn ask(program: &str, args: &[&str], package: &str) -> String {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|_| panic!("install `{program}` (package `{package}`)"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

/// Lets the repository fail its tests, and `path` be what decides: a task mends it and
/// lands, the next breaks it again and does not. `run` is task and check; the home
/// stays as it was.
#[track_caller]
fn mended_and_broken(world: &World, run: &str, path: &str, tools: &str) {
    let before = fingerprint(&world.home());
    let done = world.run(&["--name", "as-it-is"], run);
    done.expect_code(1).says(tools);
    let mend = format!("set -e; sed -i s/wrong/right/ {path}; {run}");
    world.run(&["--name", "mended", "--check", run], &mend).expect_code(0);
    assert_eq!(world.state_of("mended"), "landed");
    assert_eq!(world.task("mended")["checks"][0]["outcome"], "passed");
    let spoil = format!("sed -i s/right/wrong/ {path}");
    world.run(&["--name", "broken", "--check", run], &spoil).expect_code(3);
    assert!(world.read(path).contains("right"));
    assert_eq!(fingerprint(&world.home()), before);
}

/// The machine's node and npm in the home, where nvm would put them, and on `PATH`.
pub fn node(world: &mut World) {
    let (node, npm) = match std::env::var_os("DAM_TEST_NODE").map(PathBuf::from) {
        Some(dir) => (dir.join("bin/node"), dir.join("lib/node_modules/npm")),
        None => {
            let node = ask("node", &["-p", "process.execPath"], "nodejs");
            let which = "readlink -f \"$(command -v npm)\" || true";
            let npm = PathBuf::from(ask("sh", &["-c", which], "npm"));
            assert!(npm.ends_with("bin/npm-cli.js"), "install `npm` (package `npm`)");
            (node.into(), npm.ancestors().nth(2).expect("its directory").to_owned())
        }
    };
    let version = ask(node.to_str().expect("UTF-8"), &["--version"], "nodejs");
    let place = world.home().join(".nvm/versions/node").join(version);
    world.sh(&format!(
        "mkdir -p '{0}/bin' '{0}/lib/node_modules'; cp -L '{1}' '{0}/bin/node'; \
         cp -rL '{2}' '{0}/lib/node_modules/npm'; \
         ln -s ../lib/node_modules/npm/bin/npm-cli.js '{0}/bin/npm'; mkdir ~/.npm",
        place.display(),
        node.display(),
        npm.display()
    ));
    world.prefer(&place.join("bin").display().to_string());
    world.write(".gitignore", "node_modules\n");
}

/// A server of files on the loopback, ended with the test.
struct Server(Child, String);

impl Server {
    fn of(dir: &Path) -> Server {
        let program = "
import functools, http.server, sys
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=sys.argv[1]))
print(f'http://127.0.0.1:{server.server_port}', flush=True)
server.serve_forever()
";
        let mut child = Command::new("python3")
            .args(["-c", program])
            .arg(dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        Server(child, line.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn npm_tests_a_package_without_dependencies() {
    let mut world = World::empty();
    node(&mut world);
    world.write("package.json", "{\"name\": \"p\", \"scripts\": {\"test\": \"node --test\"}}\n");
    world.write("index.js", "exports.answer = 'wrong';\n");
    world.write(
        "index.test.js",
        "const test = require('node:test');\n\
         const assert = require('node:assert');\n\
         test('it is the node of the home', () => {\n\
         \x20 assert.ok(process.execPath.startsWith(process.env.HOME + '/.nvm/'));\n\
         });\n\
         test('the answer', () => assert.equal(require('./index').answer, 'right'));\n",
    );
    world.commit("a package");
    mended_and_broken(&world, "npm test", "index.js", "tools: node (~/.npm, ~/.nvm)");
}

#[test]
fn npm_installs_from_its_filled_cache_and_tests_offline() {
    let mut world = World::empty();
    node(&mut world);
    world.write("../tiny/package.json", "{\"name\": \"dam-tiny\", \"version\": \"1.0.0\"}\n");
    world.write("../tiny/index.js", "module.exports = (text) => text + '!';\n");
    std::fs::create_dir(world.dir().join("registry")).expect("mkdir");
    let server = Server::of(&world.dir().join("registry"));
    world.sh_in(&world.dir().join("tiny"), "npm pack --silent --pack-destination ../registry");
    let url = &server.1;
    let packument = "
const fs = require('fs');
const tarball = 'dam-tiny-1.0.0.tgz';
const hash = require('crypto').createHash('sha512').update(fs.readFileSync(tarball));
const dist = { tarball: `${process.argv[2]}/${tarball}`, integrity: 'sha512-' + hash.digest('base64') };
const one = { name: 'dam-tiny', version: '1.0.0', dist };
const all = { name: 'dam-tiny', 'dist-tags': { latest: '1.0.0' }, versions: { '1.0.0': one } };
fs.writeFileSync('dam-tiny', JSON.stringify(all));
";
    world.write("../registry/packument.js", packument);
    world.sh_in(&world.dir().join("registry"), &format!("node packument.js {url}"));
    world.write("package.json", "{\"name\": \"p\", \"scripts\": {\"test\": \"node test.js\"}}\n");
    world.write("index.js", "exports.answer = require('dam-tiny')('wrong');\n");
    world.write("test.js", "require('node:assert').equal(require('./index').answer, 'right!');\n");
    // As the person has done it before, with a network.
    world.sh(&format!("npm install --silent --registry {url} dam-tiny"));
    drop(server);
    world.sh("rm -r node_modules; grep -q integrity package-lock.json");
    world.commit("a package with a dependency");
    let run = "npm ci --offline && npm test";
    mended_and_broken(&world, run, "index.js", "tools: node (~/.npm, ~/.nvm)");
}

/// A copy of the system's Python at `place`, with pytest.
fn python(world: &World, place: &Path) {
    let program = "
import os, shutil, subprocess, sys, sysconfig
try:
    import pytest
except ImportError:
    sys.exit('install `pytest` for /usr/bin/python3 (package `python3-pytest`)')
place, skip = sys.argv[1], shutil.ignore_patterns('__pycache__', 'test', 'idlelib', 'lib2to3', 'site-packages', 'dist-packages', 'config-*')
version = 'python%d.%d' % sys.version_info[:2]
os.makedirs(place + '/bin')
shutil.copy2(os.path.realpath(sys.executable), place + '/bin/' + version)
for name in ('python', 'python3'):
    os.symlink(version, place + '/bin/' + name)
for path in {sysconfig.get_path('stdlib'), sysconfig.get_path('platstdlib')}:
    shutil.copytree(path, place + '/' + os.path.relpath(path, sys.base_prefix), symlinks=False, ignore=skip, dirs_exist_ok=True)
# What pytest consists of is what it has loaded.
pytest.main(['--version'])
paths = subprocess.run([place + '/bin/python3', '-c', 'import site; print(site.getsitepackages()[-1])'], check=True, capture_output=True, text=True)
site = paths.stdout.strip()
os.makedirs(site, exist_ok=True)
for name, module in list(sys.modules.items()):
    file = getattr(module, '__file__', None) or ''
    if '.' in name or not ('/site-packages/' in file or '/dist-packages/' in file):
        continue
    if os.path.basename(file) == '__init__.py':
        shutil.copytree(os.path.dirname(file), site + '/' + name, ignore=skip)
    else:
        shutil.copy2(file, site)
";
    let output = Command::new("/usr/bin/python3")
        .args(["-c", program])
        .arg(place)
        .env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("install `/usr/bin/python3` (package `python3`)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let script = place.join("bin/pytest");
    let text = format!(
        "#!{}/bin/python3\nimport sys\nfrom pytest import console_main\nsys.exit(console_main())\n",
        place.display()
    );
    std::fs::write(&script, text).expect("write");
    world.sh(&format!("chmod +x '{}'", script.display()));
}

/// A repository with a test that fails and one that looks which Python it is.
fn tested_by_pytest(world: &World, python: &str) {
    world.write(".gitignore", "__pycache__\n.pytest_cache\n");
    world.write("answer.py", "answer = 'wrong'\n");
    world.write(
        "test_answer.py",
        format!(
            "import os, sys, pytest\n\
             from answer import answer\n\
             def test_that_it_is_the_python_of_the_home():\n\
             \x20   place = os.path.expanduser('{python}')\n\
             \x20   assert sys.base_prefix.startswith(place), sys.base_prefix\n\
             \x20   assert pytest.__file__.startswith(os.path.expanduser('~/')), pytest.__file__\n\
             def test_the_answer():\n\
             \x20   assert answer == 'right'\n"
        ),
    );
    world.commit("a module");
}

/// The directory of pyenv's own programs, if it is installed here.
fn pyenv() -> Option<PathBuf> {
    let root = match std::env::var_os("DAM_TEST_PYENV") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let output = Command::new("pyenv").arg("root").output().ok()?;
            PathBuf::from(String::from_utf8(output.stdout).ok()?.trim())
        }
    };
    root.join("libexec/pyenv").exists().then_some(root)
}

#[test]
fn pytest_tests_with_a_python_of_pyenv() {
    let mut world = World::empty();
    let root = world.home().join(".pyenv");
    std::fs::create_dir_all(root.join("shims")).expect("mkdir");
    python(&world, &root.join("versions/3.0.0"));
    world.write("../home/.pyenv/version", "3.0.0\n");
    match pyenv() {
        Some(real) => {
            let real = real.display();
            world.sh(&format!(
                "for part in bin libexec pyenv.d; do cp -a '{real}'/$part ~/.pyenv/; done; \
                 ~/.pyenv/bin/pyenv rehash"
            ));
        }
        // A shim of the same kind.
        None => {
            for name in ["pytest", "python3"] {
                let body = "exec ~/.pyenv/versions/\"$(cat ~/.pyenv/version)\"/bin/${0##*/} \"$@\"";
                world.script(&format!("../home/.pyenv/shims/{name}"), body);
            }
        }
    }
    let shims = root.join("shims");
    assert!(shims.join("pytest").exists());
    world.prefer(&format!("{}:{}", shims.display(), root.join("bin").display()));
    tested_by_pytest(&world, "~/.pyenv/versions/3.0.0");
    mended_and_broken(&world, "pytest", "answer.py", "tools: python (~/.pyenv)");
}

#[test]
fn pytest_tests_as_a_tool_of_uv() {
    let mut world = World::empty();
    let uv = world.home().join(".local/share/uv");
    let (interpreter, tool) = (uv.join("python/cpython-3.0.0"), uv.join("tools/pytest"));
    python(&world, &interpreter);
    // As `uv tool install pytest` leaves it: a virtual environment, and a link to it.
    world.sh(&format!(
        "mkdir -p ~/.local/bin '{1}'; cd '{1}'; mkdir bin; mv '{0}/bin/pytest' bin/; \
         ln -s '{0}/bin/python3' bin/python3; \
         printf 'home = %s\\ninclude-system-site-packages = true\\n' '{0}/bin' > pyvenv.cfg; \
         sed -i '1s|.*|#!{1}/bin/python3|' bin/pytest; ln -s '{1}/bin/pytest' ~/.local/bin/pytest",
        interpreter.display(),
        tool.display()
    ));
    world.prefer(&world.home().join(".local/bin").display().to_string());
    tested_by_pytest(&world, "~/.local/share/uv/python/");
    let tools = "tools: python (~/.local/share/uv), local (~/.local/bin)";
    mended_and_broken(&world, "pytest", "answer.py", tools);
}
