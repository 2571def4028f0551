//! The `nats` blocks of operator, account and user JWTs, version 2.

use std::collections::BTreeMap;

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
            subs: UNLIMITED,
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
