//! Lists for people, of which only the beginning is told.

use std::fmt;

/// The first of many things in words, and how many more there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    first: Vec<String>,
    count: u64,
    most: usize,
}

impl Told {
    /// None yet; `most` are told.
    #[must_use]
    pub fn new(most: usize) -> Told {
        Told { first: Vec::new(), count: 0, most }
    }

    /// One more, in words only if it is one of the first.
    pub fn push(&mut self, words: impl FnOnce() -> String) {
        if self.first.len() < self.most {
            self.first.push(words());
        }
        self.count += 1;
    }

    /// As many more of which nobody knows the words.
    pub fn more(&mut self, count: u64) {
        self.count += count;
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first.join(", "))?;
        match self.count - self.first.len() as u64 {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
