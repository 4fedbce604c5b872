//! File trees that somebody else wrote: read, measured, removed and built
//! without trusting a single name in them.
//!
//! - [`walk`] is the only reader of untrusted directories, [`remove`] the only
//!   thing that deletes trees, [`usage`] what they cost on disk.
//! - [`layer`] and [`delta`] are the layer store: immutable directories that
//!   overlays use as their lower part. They know nothing of git.
//! - [`lock`] says who works on something, [`durable`] makes small files
//!   survive a power cut.
//!
//! Linux 5.13 or newer. `openat2` is required: where it is missing, calls fail
//! with `ENOSYS` instead of falling back to something weaker.

#![forbid(unsafe_code)]

pub mod delta;
mod descent;
pub mod durable;
pub mod layer;
pub mod layer_meta;
pub mod lock;
pub mod path;
mod random;
pub mod remove;
pub mod stat;
pub mod target;
pub mod trash;
pub mod usage;
pub mod walk;

pub use delta::{DeltaError, DeltaWriter};
pub use durable::{DurableError, fsync_dir, replace, write_atomic, write_atomic_at};
pub use layer::{LayerDraft, LayerError, LayerStore};
pub use layer_meta::{LayerId, LayerKind, LayerMeta};
pub use lock::{Lock, LockError, is_held};
pub use path::{BytePath, TextOrBytes};
pub use random::name as random_name;
pub use remove::{RemoveError, remove_tree};
pub use stat::{FileStat, FileTime};
pub use target::{FileTarget, Fingerprint, TreeFingerprint, TreeTarget, hex};
pub use trash::{EmptyReport, Trash};
pub use usage::{Usage, UsageError, disk_usage};
pub use walk::{Cap, Caps, DeviceKind, Entry, Found, Totals, Visit, WalkError, Walker};
