//! The words that rows are in, and which may follow which.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Declares an enum whose variants are words in the database and in JSON.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every one, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word in the database and in JSON.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// What `word` stands for, if anything.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = std::borrow::Cow::<str>::deserialize(deserializer)?;
                Self::parse(&word)
                    .ok_or_else(|| serde::de::Error::unknown_variant(&word, &[$($word),+]))
            }
        }
    };
}

words! {
    /// Where a task is in its life.
    State {
        /// Waits for its turn.
        Queued = "queued",
        /// Its context is being made.
        Preparing = "preparing",
        /// Its command runs.
        Running = "running",
        /// Its change set is being read out.
        Harvesting = "harvesting",
        /// Candidate and checks.
        Verifying = "verifying",
        /// The target is being changed.
        Publishing = "publishing",
        /// The change is in the target. Final.
        Landed = "landed",
        /// Verified or unchecked; waits for a person or the queue.
        Ready = "ready",
        /// Nothing to land. Final.
        Empty = "empty",
        /// A check said no.
        Rejected = "rejected",
        /// The change does not merge, or what it replaces has drifted.
        Conflicted = "conflicted",
        /// A run that started later has already published. Final.
        Superseded = "superseded",
        /// A command target may or may not have run before a crash.
        InDoubt = "in-doubt",
        /// The task's command failed, or left what is refused.
        Failed = "failed",
        /// The task's time was up.
        TimedOut = "timed-out",
        /// A person or a signal ended it.
        Cancelled = "cancelled",
        /// An error of ours.
        Broken = "broken",
    }
}

impl State {
    /// Whether somebody is, or should be, at work on the task.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(
            self,
            Self::Queued
                | Self::Preparing
                | Self::Running
                | Self::Harvesting
                | Self::Verifying
                | Self::Publishing
        )
    }

    /// Whether the task has come to one of its ends.
    #[must_use]
    pub const fn is_end(self) -> bool {
        !self.is_live()
    }

    /// Whether a task may go from `self` to `to`: the one table of legal steps.
    ///
    /// Nothing reaches `landed` but through `verifying` and `publishing`: that no
    /// check was asked for is a verdict too. `ready`, `conflicted` and `rejected`
    /// can be landed again by a person, from `verifying` on, and so can what a
    /// person or an error of ours stopped on the way, if it was harvested by then. All
    /// of these, and a command that failed, can go on in their context from `running`.
    #[must_use]
    pub const fn may_become(self, to: Self) -> bool {
        use State::*;
        match (self, to) {
            (Queued, Preparing)
            | (Preparing, Running)
            | (Running, Harvesting)
            | (Harvesting, Verifying)
            | (Verifying, Publishing)
            | (Publishing, Landed) => true,

            (Harvesting, Empty | Ready | Conflicted | Rejected) => true,
            // Empty: the target already holds the whole change.
            (Verifying, Empty | Ready | Conflicted | Rejected | Superseded) => true,
            (Publishing, Ready | Conflicted | Superseded | InDoubt) => true,

            (_, Failed | TimedOut | Cancelled | Broken) => self.is_live(),

            (Ready | Conflicted | Rejected | Cancelled | Broken, Verifying) => true,
            (Ready | Conflicted | Rejected | Failed | TimedOut | Cancelled | Broken, Running) => {
                true
            }
            _ => false,
        }
    }
}

words! {
    /// How far the publication of one change is.
    PublicationState {
        /// The target is about to be changed, or may have been.
        Intent = "intent",
        /// The commit point has happened: the only way is on.
        Committed = "committed",
        /// Everything after the commit point is done too.
        Done = "done",
        /// The commit point was never reached.
        Abandoned = "abandoned",
    }
}

impl PublicationState {
    /// Whether recovery has to look at it.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Intent | Self::Committed)
    }

    /// Whether a publication may go from `self` to `to`.
    #[must_use]
    pub const fn may_become(self, to: Self) -> bool {
        use PublicationState::*;
        matches!((self, to), (Intent, Committed | Abandoned) | (Committed, Done))
    }
}

words! {
    /// What a check said about a candidate.
    Outcome {
        /// It passed.
        Passed = "passed",
        /// It failed, and the change is to blame.
        Failed = "failed",
        /// It passed on the second try.
        FlakyPassed = "flaky-passed",
        /// It could not run.
        Error = "error",
        /// Its time was up.
        TimedOut = "timed-out",
        /// The target itself fails it: the change is not to blame.
        BaselineBroken = "baseline-broken",
    }
}

impl Outcome {
    /// Whether the check lets the candidate through.
    #[must_use]
    pub const fn passed(self) -> bool {
        matches!(self, Self::Passed | Self::FlakyPassed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for state in State::ALL {
            assert_eq!(State::parse(state.as_str()), Some(*state));
            let json = serde_json::to_value(state).unwrap();
            assert_eq!(json, state.as_str());
            assert_eq!(serde_json::from_value::<State>(json).unwrap(), *state);
        }
        assert_eq!(State::TimedOut.to_string(), "timed-out");
        assert_eq!(State::InDoubt.to_string(), "in-doubt");
        assert_eq!(Outcome::FlakyPassed.as_str(), "flaky-passed");
        assert_eq!(Outcome::BaselineBroken.as_str(), "baseline-broken");
        assert_eq!(State::parse("Landed"), None);
        assert!(serde_json::from_str::<State>("\"lost\"").is_err());
    }
}
