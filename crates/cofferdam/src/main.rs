//! dam
fn main() {}
