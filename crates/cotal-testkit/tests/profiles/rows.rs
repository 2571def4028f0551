//! Lines of the tables as operations that can be tried.

use std::collections::BTreeSet;

use crate::tables;

/// An operation that the broker allows or denies by its subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Publish(String),
    Subscribe(String),
}

/// Who a table speaks of.
#[derive(Debug, Clone)]
pub(crate) struct Cast {
    pub(crate) me: String,
    pub(crate) uid: String,
    pub(crate) conn: String,
    pub(crate) bob: String,
    pub(crate) bob_uid: String,
    pub(crate) bob_conn: String,
    pub(crate) account: String,
}

impl Cast {
    fn fill(&self, line: &str) -> String {
        line.replace("{me-}", &self.me.replace('.', "-"))
            .replace("{me}", &self.me)
            .replace("{uid}", &self.uid)
            .replace("{conn}", &self.conn)
            .replace("{bob-}", &self.bob.replace('.', "-"))
            .replace("{bob}", &self.bob)
            .replace("{bob.uid}", &self.bob_uid)
            .replace("{bob.conn}", &self.bob_conn)
            .replace("{account}", &self.account)
    }

    /// The same lines as the other agent would use them.
    fn swapped(&self) -> Self {
        let Self { bob, bob_uid, bob_conn, .. } = self.clone();
        Self { me: bob, uid: bob_uid, conn: bob_conn, ..self.clone() }
    }

    /// Everything that is worth trying: every table as oneself and as another, and every call on
    /// every stream.
    pub(crate) fn universe(&self) -> BTreeSet<Operation> {
        let other = self.swapped();
        let mut all = BTreeSet::new();
        for line in tables::ALL.iter().flat_map(|table| lines(table)) {
            all.extend(tried(&self.fill(line)));
            all.extend(tried(&other.fill(line)));
        }
        for stream in tables::STREAMS {
            all.extend(tables::CALLS.map(|call| api(&call.replace("{}", stream))));
            all.insert(Operation::Publish(ack(stream, "other")));
        }
        all
    }

    /// What of `universe` the tables allow.
    pub(crate) fn allowed(
        &self,
        tables: &[&str],
        universe: &BTreeSet<Operation>,
    ) -> BTreeSet<Operation> {
        let mut allowed = BTreeSet::new();
        for line in tables.iter().flat_map(|table| lines(table)) {
            let line = self.fill(line);
            allowed.extend(tried(&line));
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["kv", bucket] => {
                    let stream = format!("KV_cotal_{bucket}_main");
                    for call in ["CREATE", "INFO", "DELETE", "MSG.NEXT"] {
                        allowed
                            .extend(below(universe, &format!("$JS.API.CONSUMER.{call}.{stream}")));
                    }
                }
                ["below", call] => allowed.extend(below(universe, &format!("$JS.API.{call}"))),
                ["writes", bucket] => {
                    allowed.extend(below(universe, &format!("$KV.cotal_{bucket}_main")));
                }
                ["acks", stream] => allowed.extend(below(universe, &format!("$JS.ACK.{stream}"))),
                ["except", "acks", consumer] => {
                    for taken in below(universe, &format!("$JS.ACK.{consumer}")) {
                        allowed.remove(&taken);
                    }
                }
                ["except", call] => {
                    allowed.remove(&api(call));
                    for taken in below(universe, &format!("$JS.API.{call}")) {
                        allowed.remove(&taken);
                    }
                }
                _ => {}
            }
        }
        allowed
    }
}

fn lines(table: &str) -> impl Iterator<Item = &str> {
    table.lines().filter(|line| !line.is_empty())
}

/// What of `universe` is published below a subject.
fn below(universe: &BTreeSet<Operation>, subject: &str) -> Vec<Operation> {
    let head = format!("{subject}.");
    let is_below = |op: &&Operation| matches!(op, Operation::Publish(s) if s.starts_with(&head));
    universe.iter().filter(is_below).cloned().collect()
}

fn api(call: &str) -> Operation {
    Operation::Publish(format!("$JS.API.{call}"))
}

fn ack(stream: &str, consumer: &str) -> String {
    format!("$JS.ACK.{stream}.{consumer}.1.1.1.1.1")
}

/// The operations that a line names by itself.
fn tried(line: &str) -> Vec<Operation> {
    let words: Vec<_> = line.split(' ').collect();
    match words[..] {
        ["pub", subject] => vec![Operation::Publish(subject.to_owned())],
        ["sub", subject] => vec![Operation::Subscribe(subject.to_owned())],
        ["api", call] => vec![api(call)],
        ["put", bucket, key] => {
            vec![Operation::Publish(format!("$KV.cotal_{bucket}_main.{key}"))]
        }
        ["kv", bucket] => vec![
            api(&format!("STREAM.INFO.KV_cotal_{bucket}_main")),
            api(&format!("STREAM.MSG.GET.KV_cotal_{bucket}_main")),
            api(&format!("CONSUMER.CREATE.KV_cotal_{bucket}_main")),
        ],
        ["pull", stream, consumer] => pull(stream, consumer),
        ["own", stream, consumer, filter] => {
            let mut all = pull(stream, consumer);
            all.push(api(&format!("CONSUMER.CREATE.{stream}.{consumer}.{filter}")));
            all.push(api(&format!("CONSUMER.DELETE.{stream}.{consumer}")));
            all
        }
        ["below" | "acks" | "writes" | "except", ..] => Vec::new(),
        _ => panic!("not a line of a table: {line:?}"),
    }
}

fn pull(stream: &str, consumer: &str) -> Vec<Operation> {
    vec![
        api(&format!("CONSUMER.INFO.{stream}.{consumer}")),
        api(&format!("CONSUMER.MSG.NEXT.{stream}.{consumer}")),
        Operation::Publish(ack(stream, consumer)),
    ]
}
