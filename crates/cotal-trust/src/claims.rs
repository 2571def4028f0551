//! The `nats` blocks of operator, account and user JWTs, version 2.

use std::collections::BTreeMap;

use cotal_wire::accounts::{Account as Home, Crossing, Grant};
use cotal_wire::limits::AGENT_CONNECTIONS;
use cotal_wire::permissions::Permissions;
use serde::Serialize;

const VERSION: u8 = 2;
const UNLIMITED: i64 = -1;
const ALL: &str = ">";

#[derive(Serialize)]
pub(crate) struct Operator<'a> {
    pub(crate) system_account: &'a str,
    r#type: &'static str,
    version: u8,
}

impl<'a> Operator<'a> {
    pub(crate) fn new(system_account: &'a str) -> Self {
        Self { system_account, r#type: "operator", version: VERSION }
    }
}

#[derive(Serialize)]
pub(crate) struct Account<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    imports: Vec<Import<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exports: Vec<Export<'a>>,
    limits: AccountLimits,
    default_permissions: EmptyPermissions,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    revocations: &'a BTreeMap<String, i64>,
    r#type: &'static str,
    version: u8,
}

impl<'a> Account<'a> {
    /// `jetstream` is false for the system account, which must not have it.
    pub(crate) fn new(jetstream: bool, revocations: &'a BTreeMap<String, i64>) -> Self {
        Self {
            imports: Vec::new(),
            exports: Vec::new(),
            limits: AccountLimits {
                subs: UNLIMITED,
                data: UNLIMITED,
                payload: UNLIMITED,
                imports: UNLIMITED,
                exports: UNLIMITED,
                wildcards: true,
                conn: UNLIMITED,
                leaf: UNLIMITED,
                disallow_bearer: true,
                jetstream: jetstream.then_some(JetStreamLimits {
                    mem_storage: UNLIMITED,
                    disk_storage: UNLIMITED,
                    streams: UNLIMITED,
                    consumer: UNLIMITED,
                    max_ack_pending: UNLIMITED,
                }),
            },
            default_permissions: EmptyPermissions { publish: Empty {}, subscribe: Empty {} },
            revocations,
            r#type: "account",
            version: VERSION,
        }
    }

    /// With the part that `home` has in `grants`, and its share of the broker's connections; `key`
    /// tells an account's id.
    pub(crate) fn with_grants(
        mut self,
        home: Home,
        grants: &'a [Grant],
        key: impl Fn(Home) -> &'a str,
    ) -> Self {
        if home == Home::Agents {
            self.limits.conn = AGENT_CONNECTIONS;
        }
        for grant in grants {
            // Two accounts may be offered the same subject; it is exported once.
            let is_told = self.exports.iter().any(|export| export.subject == grant.subject);
            if grant.from == home && !is_told {
                self.exports.push(Export::new(grant));
            }
            if grant.to == home {
                self.imports.push(Import::new(grant, key(grant.from)));
            }
        }
        self
    }
}

#[derive(Serialize)]
struct Export<'a> {
    name: &'a str,
    subject: &'a str,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_type: Option<&'static str>,
}

impl<'a> Export<'a> {
    fn new(grant: &'a Grant) -> Self {
        let response_type = match grant.crossing {
            Crossing::Request => Some("Singleton"),
            Crossing::Pull => Some("Stream"),
            Crossing::Messages => None,
        };
        let subject = &grant.subject;
        Self { name: subject, subject, r#type: kind(grant.crossing), response_type }
    }
}

#[derive(Serialize)]
struct Import<'a> {
    name: &'a str,
    subject: &'a str,
    account: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    local_subject: Option<String>,
    r#type: &'static str,
}

impl<'a> Import<'a> {
    fn new(grant: &'a Grant, account: &'a str) -> Self {
        let (name, subject) = (&grant.subject, &grant.subject);
        let local_subject = grant.local.as_deref().map(renaming);
        Self { name, subject, account, local_subject, r#type: kind(grant.crossing) }
    }
}

fn kind(crossing: Crossing) -> &'static str {
    match crossing {
        Crossing::Request | Crossing::Pull => "service",
        Crossing::Messages => "stream",
    }
}

/// In a renaming each `*` is named by its place, `$1` the first; a `>` at the end stands for
/// itself.
fn renaming(local: &str) -> String {
    let mut place = 0;
    let token = |token: &str| {
        if token != "*" {
            return token.to_owned();
        }
        place += 1;
        format!("${place}")
    };
    local.split('.').map(token).collect::<Vec<_>>().join(".")
}

#[derive(Serialize)]
struct AccountLimits {
    subs: i64,
    data: i64,
    payload: i64,
    imports: i64,
    exports: i64,
    wildcards: bool,
    conn: i64,
    leaf: i64,
    disallow_bearer: bool,
    #[serde(flatten)]
    jetstream: Option<JetStreamLimits>,
}

#[derive(Serialize)]
struct JetStreamLimits {
    mem_storage: i64,
    disk_storage: i64,
    streams: i64,
    consumer: i64,
    max_ack_pending: i64,
}

#[derive(Serialize)]
struct EmptyPermissions {
    #[serde(rename = "pub")]
    publish: Empty,
    #[serde(rename = "sub")]
    subscribe: Empty,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
pub(crate) struct User<'a> {
    #[serde(rename = "pub")]
    publish: Permission<'a>,
    #[serde(rename = "sub")]
    subscribe: Permission<'a>,
    subs: i64,
    data: i64,
    payload: i64,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    tags: &'a [String],
    r#type: &'static str,
    version: u8,
}

impl<'a> User<'a> {
    pub(crate) fn new(permissions: &'a Permissions, tags: &'a [String]) -> Self {
        Self {
            publish: Permission::new(&permissions.pub_allow, &permissions.pub_deny),
            subscribe: Permission::new(&permissions.sub_allow, &permissions.sub_deny),
            subs: permissions.subscriptions.unwrap_or(UNLIMITED),
            data: UNLIMITED,
            payload: UNLIMITED,
            tags,
            r#type: "user",
            version: VERSION,
        }
    }
}

#[derive(Serialize)]
struct Permission<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deny: Vec<&'a str>,
}

impl<'a> Permission<'a> {
    /// The broker reads an empty allow list as "everything", so default-deny must be said.
    fn new(allow: &'a [String], deny: &'a [String]) -> Self {
        let texts = |list: &'a [String]| list.iter().map(String::as_str).collect();
        if allow.is_empty() {
            return Self { allow: Vec::new(), deny: vec![ALL] };
        }
        Self { allow: texts(allow), deny: texts(deny) }
    }
}
