//! Modes of git's objects in a tree or an index (`gitformat-index(5)`).

/// The bits that say what something is.
pub const TYPE: u32 = 0o170_000;
/// A directory.
pub const DIR: u32 = 0o040_000;
/// A symbolic link.
pub const LINK: u32 = 0o120_000;
/// A commit of a submodule.
pub const GITLINK: u32 = 0o160_000;
/// What says that something is a file.
pub const FILE: u32 = 0o100_000;
/// A file that can't be executed.
pub const PLAIN: u32 = 0o100_644;
/// A file that can.
pub const EXECUTABLE: u32 = 0o100_755;
