//! `meta.json` of a layer, its id and its key: an on-disk format.
//!
//! Version 1. Readers refuse other versions and unknown fields; a layer is a
//! cache, so one that can't be read is built again.

use crate::layer::LayerError;
use crate::random;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// The only version of `meta.json` so far.
pub(crate) const VERSION: u32 = 1;
pub(crate) const ID_LEN: usize = 12;
const KEY_MAX: usize = 200;

/// The short name of a layer: 12 characters of `[a-z0-9]`, so that a dozen fit
/// in one page of mount options.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerId(String);

impl LayerId {
    /// A new one.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn random() -> io::Result<Self> {
        random::name(ID_LEN).map(Self)
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<LayerId> for String {
    fn from(id: LayerId) -> Self {
        id.0
    }
}

impl TryFrom<String> for LayerId {
    type Error = LayerError;

    fn try_from(text: String) -> Result<Self, LayerError> {
        let valid = text.len() == ID_LEN
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if valid { Ok(Self(text)) } else { Err(LayerError::InvalidId { id: text }) }
    }
}

impl std::str::FromStr for LayerId {
    type Err = LayerError;

    fn from_str(text: &str) -> Result<Self, LayerError> {
        Self::try_from(text.to_owned())
    }
}

/// What a layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerKind {
    /// A whole tree. Synced before it can be found.
    Base,
    /// What differs from another layer. Only valid in the boot that made it.
    Delta,
}

/// `meta.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerMeta {
    /// 1.
    pub version: u32,
    /// What it holds.
    pub kind: LayerKind,
    /// What it was made from, opaque here: 1 to 200 characters of `[a-z0-9-]`.
    pub key: String,
    /// The layer it must lie on.
    pub base: Option<LayerId>,
    /// Files in `tree`.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Whom the files belong to.
    pub owner_uid: u32,
    /// The boot that a delta is valid in. Set by [`LayerStore::build`](crate::LayerStore::build); give `None`.
    #[serde(default)]
    pub boot: Option<String>,
}

pub(crate) fn check_key(key: &str) -> Result<(), LayerError> {
    let valid = (1..=KEY_MAX).contains(&key.len())
        && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if valid { Ok(()) } else { Err(LayerError::InvalidKey { key: key.to_owned() }) }
}
