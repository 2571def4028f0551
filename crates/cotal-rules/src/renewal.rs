//! Renewal of a credential without a restart (CRD-2, CRD-5): when it is due, and which candidate
//! may be tried on a proof connection.

use cotal_wire::accounts::inhabited;
use cotal_wire::creds::Creds;
use cotal_wire::permissions::Permissions;

/// When a holder re-reads its key: at 75 % of the credential's lifetime, in Unix seconds; never for
/// a credential that does not expire.
#[must_use]
pub fn renewal_point(issued_at: i64, expires_at: Option<i64>) -> Option<i64> {
    let expires_at = expires_at?;
    Some(issued_at + (expires_at - issued_at).max(0) * 3 / 4)
}

/// When the owner of the renewal signs again: at half the lifetime, well before the holder
/// re-reads.
#[must_use]
pub fn half_life(issued_at: i64, expires_at: Option<i64>) -> Option<i64> {
    let expires_at = expires_at?;
    Some(issued_at + (expires_at - issued_at).max(0) / 2)
}

/// How far a credential is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// Before half of it.
    Fresh,
    /// Its owner must sign it again now.
    Due,
    /// Its holder has re-read its key, and found nothing new.
    Missed,
    /// It has expired.
    Expired,
}

/// How far a credential is in its life. `now` is in Unix seconds.
#[must_use]
pub fn age(issued_at: i64, expires_at: Option<i64>, now: i64) -> Age {
    let passed = |point: Option<i64>| point.is_some_and(|point| now >= point);
    if passed(expires_at) {
        Age::Expired
    } else if passed(renewal_point(issued_at, expires_at)) {
        Age::Missed
    } else if passed(half_life(issued_at, expires_at)) {
        Age::Due
    } else {
        Age::Fresh
    }
}

/// Why a candidate is refused before it is presented to the broker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is of another account.
    #[error("it is of another account")]
    OtherAccount,
    /// Another key pair: the daemon's nkey is stable (CRD-7).
    #[error("it is of another identity, {0}; the daemon's key must stay the same")]
    OtherIdentity(String),
    /// It has expired.
    #[error("it has expired")]
    Expired,
    /// It grants less than the daemon needs.
    #[error("it lacks permissions that the daemon needs: {}", .0.join(", "))]
    Lacks(Vec<String>),
}

/// What to do with the credential in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidate {
    /// It is the one held, and not due yet: nothing to do.
    Unchanged,
    /// It is the one held, although it is due: the renewal was missed.
    Missed,
    /// It may not replace the one held.
    Refused(Refused),
    /// It may, once the broker has accepted it on a proof connection.
    Prove,
}

/// Compares the credential in the store with the one held. `now` is in Unix seconds.
#[must_use]
pub fn judge(held: &Creds, stored: &Creds, needed: &Permissions, now: i64) -> Candidate {
    if stored.jwt == held.jwt && stored.seed == held.seed {
        let point = renewal_point(held.claims.issued_at, held.claims.expires_at);
        let due = point.is_some_and(|point| now >= point);
        return if due { Candidate::Missed } else { Candidate::Unchanged };
    }
    match refusal(held, stored, needed, now) {
        Some(refused) => Candidate::Refused(refused),
        None => Candidate::Prove,
    }
}

fn refusal(held: &Creds, stored: &Creds, needed: &Permissions, now: i64) -> Option<Refused> {
    let (have, new) = (&held.claims, &stored.claims);
    if inhabited(new) != inhabited(have) {
        return Some(Refused::OtherAccount);
    }
    if new.subject != have.subject {
        return Some(Refused::OtherIdentity(new.subject.to_string()));
    }
    if new.expires_at.is_some_and(|exp| exp <= now) {
        return Some(Refused::Expired);
    }
    let publish = needed.pub_allow.iter().filter(|subject| !new.pub_allow.contains(subject));
    let subscribe = needed.sub_allow.iter().filter(|subject| !new.sub_allow.contains(subject));
    let lacks: Vec<String> = publish
        .map(|subject| format!("publish {subject}"))
        .chain(subscribe.map(|subject| format!("subscribe {subject}")))
        .collect();
    if lacks.is_empty() { None } else { Some(Refused::Lacks(lacks)) }
}

#[cfg(test)]
mod tests {
    use cotal_wire::creds::Claims;
    use cotal_wire::ids::ConnId;

    use super::*;

    fn creds(jwt: &str) -> Creds {
        let subject = ConnId::parse(&format!("U{}", "A".repeat(55))).unwrap();
        Creds {
            jwt: jwt.into(),
            seed: "S".into(),
            claims: Claims {
                subject,
                name: "delivery".into(),
                account: "A1".into(),
                issuer: "A1".into(),
                issued_at: 1_000,
                expires_at: Some(2_000),
                tags: Vec::new(),
                pub_allow: vec!["p".into(), "q".into()],
                sub_allow: vec!["s".into()],
            },
        }
    }

    fn needed() -> Permissions {
        Permissions {
            pub_allow: vec!["p".into(), "q".into()],
            sub_allow: vec!["s".into()],
            ..Permissions::default()
        }
    }

    fn judged(change: impl FnOnce(&mut Creds)) -> Candidate {
        let mut candidate = creds("new");
        candidate.claims.issued_at = 1_500;
        candidate.claims.expires_at = Some(2_500);
        change(&mut candidate);
        judge(&creds("old"), &candidate, &needed(), 1_600)
    }

    #[test]
    fn crd_2_the_key_is_read_again_at_three_quarters_of_the_lifetime() {
        assert_eq!(renewal_point(1_000, Some(2_000)), Some(1_750));
        assert_eq!(half_life(1_000, Some(2_000)), Some(1_500));
        assert_eq!(renewal_point(1_000, None), None);
    }

    #[test]
    fn a_life_has_its_points() {
        let at = |now| age(1_000, Some(2_000), now);
        assert_eq!([at(1_499), at(1_500)], [Age::Fresh, Age::Due]);
        assert_eq!([at(1_749), at(1_750)], [Age::Due, Age::Missed]);
        assert_eq!([at(1_999), at(2_000)], [Age::Missed, Age::Expired]);
        assert_eq!(age(1_000, None, i64::MAX), Age::Fresh);
    }

    #[test]
    fn an_unchanged_value_is_idempotent_until_it_is_due_and_missed_after() {
        let held = creds("old");
        assert_eq!(judge(&held, &held, &needed(), 1_749), Candidate::Unchanged);
        assert_eq!(judge(&held, &held, &needed(), 1_750), Candidate::Missed);
    }

    #[test]
    fn crd_5_a_foreign_expired_or_weaker_candidate_is_refused() {
        assert_eq!(judged(|_| ()), Candidate::Prove);
        let other = ConnId::parse(&format!("U{}", "B".repeat(55))).unwrap();
        let (foreign, named) = (other.clone(), other.to_string());
        let refused = |change: fn(&mut Creds)| match judged(change) {
            Candidate::Refused(why) => why,
            other => panic!("not refused: {other:?}"),
        };
        let account = |c: &mut Creds| c.claims.account = "A2".into();
        let expired = |c: &mut Creds| c.claims.expires_at = Some(1_600);
        let weaker = |c: &mut Creds| c.claims.pub_allow = vec!["p".into()];
        assert_eq!(refused(account), Refused::OtherAccount);
        assert_eq!(refused(expired), Refused::Expired);
        assert_eq!(refused(weaker), Refused::Lacks(vec!["publish q".into()]));
        let identity = judged(move |c| c.claims.subject = foreign);
        assert_eq!(identity, Candidate::Refused(Refused::OtherIdentity(named)));
    }
}
