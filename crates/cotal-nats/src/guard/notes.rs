//! One line in the log per subject and minute, however many messages of it had to be repaired.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

/// How often a subject is named.
const EVERY: Duration = Duration::from_secs(60);
/// Subjects that are told apart; a publisher can make as many as it likes.
const SUBJECTS: usize = 64;
/// What is shown of a subject.
const SHOWN: usize = 256;

/// What was said when.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<HashMap<String, (Instant, u64)>>);

impl Notes {
    /// A message of this subject was repaired.
    pub(super) fn unreadable(&self, subject: &str) {
        let subject: String = subject.chars().take(SHOWN).collect();
        if let Some(before) = self.note(&subject, Instant::now()) {
            warn!(
                subject,
                before,
                "a message has headers or a subject that cannot be read; it is passed on without \
                 them, and named once a minute"
            );
        }
    }

    /// How many messages were not named since the last line, when there is to be a line now.
    fn note(&self, subject: &str, now: Instant) -> Option<u64> {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((said, unnamed)) = notes.get_mut(subject) {
            if now.duration_since(*said) < EVERY {
                *unnamed += 1;
                return None;
            }
            *said = now;
            return Some(std::mem::take(unnamed));
        }
        if notes.len() >= SUBJECTS {
            notes.retain(|_, (said, _)| now.duration_since(*said) < EVERY);
        }
        if notes.len() >= SUBJECTS {
            return None;
        }
        notes.insert(subject.to_owned(), (now, 0));
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_named_once_a_minute() {
        let (notes, now) = (Notes::default(), Instant::now());
        assert_eq!(notes.note("a", now), Some(0));
        assert_eq!(notes.note("a", now), None);
        assert_eq!(notes.note("b", now), Some(0));
        assert_eq!(notes.note("a", now + EVERY), Some(1));
        for n in 0..1_000 {
            notes.note(&n.to_string(), now + EVERY);
        }
        assert_eq!(notes.0.lock().expect("the notes").len(), SUBJECTS);
    }
}
