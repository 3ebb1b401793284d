//! hanok.
fn main() {}
