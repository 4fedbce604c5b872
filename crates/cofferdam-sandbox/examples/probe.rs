//! Builds the boundary once and says what it found.
fn main() {
    if std::env::args().nth(1).as_deref() == Some(cofferdam_sandbox::init::ARGUMENT) {
        cofferdam_sandbox::init::main();
    }
    let dir = std::env::temp_dir().join(format!("probe-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let ids = cofferdam_sandbox::Ids::for_task("/".as_ref()).unwrap();
    for _ in 0..1 {
    let start = std::time::Instant::now();
    println!("{:?} {:?}", cofferdam_sandbox::probe::run(&dir, ids), start.elapsed());
    }
}
