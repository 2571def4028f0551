//! Identities (`wire.md` §1): principals, lifecycles, connections and roles.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::MAX_TOKEN;

/// Why a text is not an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// An owner, actor or dot-form principal is malformed.
    #[error("{0:?} is not a principal: write <owner>.<actor>, each of letters, digits and _")]
    Principal(String),
    /// A lifecycle uid is malformed.
    #[error("not a lifecycle uid: it has 26 to 32 characters of a-z and 0-9")]
    Uid,
    /// A connection id is not a user nkey.
    #[error("{0:?} is not a user nkey: it has 56 characters and starts with U")]
    ConnId(String),
    /// A role or route token is malformed.
    #[error("{0:?} is not a role: use letters, digits, _ and -")]
    Role(String),
    /// An endpoint's name is malformed.
    #[error("{0:?} is not an endpoint: use letters, digits, _ and -")]
    Endpoint(String),
    /// A timer is malformed.
    #[error(
        "{0:?} is not a timer: write <endpoint>.<instanceId>.<epoch>.<timerId>, each of letters, \
         digits, _ and -"
    )]
    Timer(String),
    /// A lifecycle key (`<owner>.<actor>.<uid>`) is malformed.
    #[error("not a lifecycle key: write <owner>.<actor>.<uid>")]
    Lifecycle,
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_TOKEN
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// A route token: `[A-Za-z0-9_-]+`.
pub(crate) fn is_route_token(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_TOKEN
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// An `<owner>.<actor>` pair in dot-form; cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    dotted: Arc<str>,
    dot: u16,
}

impl Principal {
    /// Builds a principal from its two tokens.
    ///
    /// # Errors
    /// When a token is empty, too long or holds anything but letters, digits and `_`.
    pub fn new(owner: &str, actor: &str) -> Result<Self, IdError> {
        Self::parse(&format!("{owner}.{actor}"))
    }

    /// Reads the dot-form.
    ///
    /// # Errors
    /// When the text is not exactly two well-formed tokens.
    pub fn parse(dotted: &str) -> Result<Self, IdError> {
        let bad = || IdError::Principal(dotted.chars().take(64).collect());
        let (owner, actor) = dotted.split_once('.').ok_or_else(bad)?;
        if !is_token(owner) || !is_token(actor) {
            return Err(bad());
        }
        let dot = u16::try_from(owner.len()).map_err(|_| bad())?;
        Ok(Self { dotted: dotted.into(), dot })
    }

    /// The owner token.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.dotted[..usize::from(self.dot)]
    }

    /// The actor token.
    #[must_use]
    pub fn actor(&self) -> &str {
        &self.dotted[usize::from(self.dot) + 1..]
    }

    /// `<owner>.<actor>`: the form of subjects, keys and `from.id`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.dotted
    }

    /// `<owner>-<actor>`: the form of JetStream names.
    #[must_use]
    pub fn dashed(&self) -> String {
        format!("{}-{}", self.owner(), self.actor())
    }

    /// Whether the owner is one that a deployment really mints (`local`, or `u_` and 26 of
    /// `[a-z2-7]`); anything else is dropped at every trust boundary.
    #[must_use]
    pub fn has_real_owner(&self) -> bool {
        let owner = self.owner();
        owner == "local"
            || owner.strip_prefix("u_").is_some_and(|rest| {
                rest.len() == 26 && rest.bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7'))
            })
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.dotted)
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.dotted)
    }
}

/// One incarnation of a principal: a capability of at least 128 bits that is never reused.
///
/// `Debug` shows a prefix only, because whoever knows the uid knows the names of the member's
/// stores (`wire.md` §8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LifecycleUid {
    bytes: [u8; 32],
    len: u8,
}

impl LifecycleUid {
    /// Reads a uid.
    ///
    /// # Errors
    /// When the text is not 26 to 32 of `[a-z0-9]`.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let ok = (26..=32).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if !ok {
            return Err(IdError::Uid);
        }
        let mut bytes = [0; 32];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        let len = u8::try_from(text.len()).map_err(|_| IdError::Uid)?;
        Ok(Self { bytes, len })
    }

    /// Makes a uid of 26 characters from 26 random bytes (5 bits of each are used: 130 bits).
    #[must_use]
    pub fn from_random(random: [u8; 26]) -> Self {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let mut bytes = [0; 32];
        for (slot, byte) in bytes.iter_mut().zip(random) {
            *slot = ALPHABET[usize::from(byte & 31)];
        }
        Self { bytes, len: 26 }
    }

    /// The uid's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Display for LifecycleUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LifecycleUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", &self.as_str()[..6])
    }
}

/// A principal's incarnation: the key of all durable state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lifecycle {
    /// Who.
    pub principal: Principal,
    /// Which incarnation.
    pub uid: LifecycleUid,
}

impl Lifecycle {
    /// Pairs a principal with a uid.
    #[must_use]
    pub fn new(principal: Principal, uid: LifecycleUid) -> Self {
        Self { principal, uid }
    }

    /// Reads `<owner>.<actor>.<uid>`.
    ///
    /// # Errors
    /// When the text is not exactly those three tokens.
    pub fn parse(dotted: &str) -> Result<Self, IdError> {
        let (principal, uid) = dotted.rsplit_once('.').ok_or(IdError::Lifecycle)?;
        Ok(Self {
            principal: Principal::parse(principal).map_err(|_| IdError::Lifecycle)?,
            uid: LifecycleUid::parse(uid).map_err(|_| IdError::Lifecycle)?,
        })
    }

    /// `<owner>.<actor>.<uid>`: the ACL key and the tail of member keys and store subjects.
    #[must_use]
    pub fn dotted(&self) -> String {
        format!("{}.{}", self.principal, self.uid)
    }

    /// `<owner>-<actor>-<uid>`: the tail of consumer names.
    #[must_use]
    pub fn dashed(&self) -> String {
        format!("{}-{}-{}", self.principal.owner(), self.principal.actor(), self.uid)
    }
}

/// A connection's nkey; it keys only that connection's reply inbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConnId(String);

impl ConnId {
    /// Reads a user nkey (`U…`).
    ///
    /// # Errors
    /// When the text does not have the shape of one.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let ok = text.len() == 56
            && text.starts_with('U')
            && text.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'));
        if ok {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdError::ConnId(text.chars().take(64).collect()))
        }
    }

    /// The nkey's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `_INBOX_<connId>`: the prefix set before the connection's first request.
    #[must_use]
    pub fn inbox_prefix(&self) -> String {
        format!("_INBOX_{}", self.0)
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A role that agents may hold and requests are addressed to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Role(String);

impl Role {
    /// Reads a role.
    ///
    /// # Errors
    /// When the text is not a route token.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if is_route_token(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdError::Role(text.chars().take(64).collect()))
        }
    }

    /// The role's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A workflow endpoint: who asks for timers and is told when they fire.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointName(String);

impl EndpointName {
    /// Reads an endpoint's name.
    ///
    /// # Errors
    /// When the text is not a route token.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if is_route_token(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdError::Endpoint(text.chars().take(64).collect()))
        }
    }

    /// The name's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! serde_as_text {
    ($ty:ty) => {
        impl Serialize for $ty {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $ty {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

serde_as_text!(Principal);
serde_as_text!(LifecycleUid);
serde_as_text!(ConnId);
serde_as_text!(Role);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_are_two_tokens_and_never_rewritten() {
        let p = Principal::parse("local.Bob_1").unwrap();
        assert_eq!((p.owner(), p.actor(), p.dashed().as_str()), ("local", "Bob_1", "local-Bob_1"));
        for bad in
            ["", ".", "a", "a.", ".b", "a.b.c", "a-b.c", "a.b-c", "a.b*", "a.>", "a b.c", "é.b"]
        {
            assert!(Principal::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_minted_owners_are_real() {
        let real = |t: &str| Principal::parse(t).unwrap().has_real_owner();
        assert!(real("local.a"));
        assert!(real("u_abcdefghijklmnopqrstuvwxyz.a"));
        assert!(!real("u_abcdefghijklmnopqrstuvwxy1.a"));
        assert!(!real("u_abc.a"));
        assert!(!real("Local.a"));
    }

    #[test]
    fn uids_have_their_length_and_alphabet() {
        assert!(LifecycleUid::parse(&"a".repeat(25)).is_err());
        assert!(LifecycleUid::parse(&"a".repeat(33)).is_err());
        assert!(LifecycleUid::parse(&"A".repeat(26)).is_err());
        let uid = LifecycleUid::parse(&"a1".repeat(16)).unwrap();
        assert_eq!(uid.as_str().len(), 32);
        assert_eq!(LifecycleUid::from_random([255; 26]).as_str(), "7".repeat(26));
        assert!(!format!("{uid:?}").contains(uid.as_str()));
    }

    #[test]
    fn lifecycles_read_back() {
        let text = format!("local.bob.{}", "z".repeat(26));
        let life = Lifecycle::parse(&text).unwrap();
        assert_eq!(life.dotted(), text);
        assert_eq!(life.dashed(), text.replace('.', "-"));
        assert!(Lifecycle::parse("local.bob").is_err());
    }
}
