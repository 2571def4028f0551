//! What each profile may do, spelled out subject by subject and without `cotal-wire`, so that a
//! mistake there cannot hide here. Whatever a table does not list is denied.
//!
//! A line is `pub SUBJECT`, `sub SUBJECT`, `api CALL` (a publish below `$JS.API`), or the short
//! form of `wire.md` §8: `kv BUCKET`, `put BUCKET KEY`, `pull STREAM CONSUMER`, `own STREAM
//! CONSUMER FILTER`. `below CALL` stands for whatever is tried below that call, `except CALL` takes
//! away what lines before it gave; `writes BUCKET` is every tried key of a bucket. In braces:
//! `{me}` and `{me-}` the user's own principal, `{uid}` its lifecycle, `{conn}` its nkey; `{bob}`,
//! `{bob-}`, `{bob.uid}` an agent that it is not; `{account}` the space's account.

/// What every profile may do.
pub(crate) const EVERYONE: &str = "
sub _INBOX_{conn}.>
sub _INBOX_{conn}.reply
api INFO
pub $JS.FC.KV_cotal_presence_main.watch.1
";

/// An agent that reads `team.>` and `ops`, posts on `team.>` and holds the role `reviewer`.
pub(crate) const AGENT: &str = "
sub cotal.main.chat.*.*.team.>
sub cotal.main.chat.*.*.team.backend
sub cotal.main.chat.*.*.ops
sub cotal.main.ctl.delivery.{me}.reply.*
sub cotal.main.ctl.delivery.{me}.reply.nonce
sub cotal.main.live.delivery.{me}.reply.*
sub cotal.main.live.delivery.{me}.reply.nonce
pub cotal.main.chat.{me}.team.backend
pub cotal.main.inst.{bob}.{me}
pub cotal.main.svc.builder.{me}
pub cotal.main.ctl.delivery.{me}
pub cotal.main.live.delivery.{me}
put presence {me}
api STREAM.INFO.CHAT_main
kv presence
kv channels
api STREAM.INFO.KV_cotal_delivery_main
api STREAM.MSG.GET.KV_cotal_delivery_main
api CONSUMER.CREATE.CHAT_main.chathist_{me-}-{uid}.cotal.main.chat.*.*.team.>
api CONSUMER.CREATE.CHAT_main.chathist_{me-}-{uid}.cotal.main.chat.*.*.team.backend
api CONSUMER.CREATE.CHAT_main.chathist_{me-}-{uid}.cotal.main.chat.*.*.ops
api CONSUMER.INFO.CHAT_main.chathist_{me-}-{uid}
api CONSUMER.MSG.NEXT.CHAT_main.chathist_{me-}-{uid}
api CONSUMER.DELETE.CHAT_main.chathist_{me-}-{uid}
pull DM_main dm_{me-}-{uid}
pull DLV_main dlv_{me-}-{uid}
";

/// What an agent's role adds.
pub(crate) const ROLE: &str = "
sub cotal.main.ctl.anycast-take.{me}.reply.*
sub cotal.main.ctl.anycast-take.{me}.reply.nonce
pub cotal.main.ctl.anycast-take.{me}
pull TASK_main svc_reviewer
api STREAM.INFO.TASK_main
";

pub(crate) const DELIVERY: &str = "
sub cotal.main.ctl.delivery.*.*
sub cotal.main.ctl.delivery-admin.*.*
sub cotal.main.ctl.anycast-take.*.*
sub cotal.main.live.delivery.*.*
sub cotal.main.ctl.delivery.{bob}
pub cotal.main.ctl.delivery.{bob}.reply.nonce
pub cotal.main.ctl.delivery-admin.{bob}.reply.nonce
pub cotal.main.ctl.anycast-take.{bob}.reply.nonce
pub cotal.main.live.delivery.{bob}.reply.nonce
sub cotal.main.ctl.delivery.{me}
pub cotal.main.ctl.delivery.{me}.reply.nonce
pub cotal.main.dinbox.{bob}.{bob.uid}
pub cotal.main.dinbox.{me}.{uid}
pub cotal.main.dlv.{bob}.{bob.uid}
pub cotal.main.dlv.{me}.{uid}
pub cotal.main.inst.{bob}.{me}
pub cotal.main.ept.endpoint.i1.1.t1.armed
own CHAT_main fanout cotal.main.chat.>
api DIRECT.GET.CHAT_main
api DIRECT.GET.CHAT_main.cotal.main.chat.{bob}.team.backend
below DIRECT.GET.CHAT_main
own INBOX_main reader cotal.main.dinbox.>
own EPT_REQ_main timer-writer cotal.main.ept.*.*.*.*.schedule
api STREAM.PURGE.CHAT_main
below CONSUMER.INFO.DLV_main
api STREAM.INFO.CHAT_main
api STREAM.INFO.INBOX_main
api STREAM.INFO.DLV_main
api STREAM.INFO.TASK_main
api STREAM.INFO.EPT_REQ_main
api STREAM.INFO.EPT_main
api STREAM.MSG.GET.CHAT_main
api STREAM.MSG.GET.INBOX_main
api STREAM.MSG.GET.DLV_main
api STREAM.MSG.GET.TASK_main
api STREAM.MSG.GET.EPT_main
api STREAM.MSG.DELETE.INBOX_main
api STREAM.MSG.DELETE.DLV_main
api STREAM.MSG.DELETE.TASK_main
kv presence
kv channels
kv members
kv acl
kv delivery
kv anycast
kv dead
put members team.backend/{bob}.{bob.uid}
put delivery lease.0
put anycast req.1
put dead e.1
writes members
writes anycast
writes dead
";

pub(crate) const MEMBERSHIP_RW: &str = "
kv members
kv membership
put membership {bob}
put membership =feed
writes membership
";

pub(crate) const SUPERVISOR: &str = "
pub cotal.main.ctl.delivery-admin.{me}
sub cotal.main.ctl.delivery-admin.{me}.reply.*
sub cotal.main.ctl.delivery-admin.{me}.reply.nonce
kv acl
kv members
kv presence
kv manager
put acl {bob}.{bob.uid}
put manager lease.i1
put manager renewal
put members team.backend/{bob}.{bob.uid}
writes acl
writes manager
writes members
below CONSUMER.CREATE.DM_main
below CONSUMER.INFO.DM_main
below CONSUMER.DELETE.DM_main
below CONSUMER.CREATE.DLV_main
below CONSUMER.INFO.DLV_main
below CONSUMER.DELETE.DLV_main
below CONSUMER.CREATE.TASK_main
below CONSUMER.INFO.TASK_main
below CONSUMER.DELETE.TASK_main
api STREAM.INFO.CHAT_main
api STREAM.INFO.DM_main
api STREAM.INFO.TASK_main
";

pub(crate) const OPERATOR: &str = "
kv presence
kv channels
kv members
kv acl
kv membership
kv delivery
kv manager
kv anycast
kv dead
put channels =defaults
put channels team.backend
put dead e.1
writes channels
writes dead
api STREAM.INFO.CHAT_main
api STREAM.INFO.DM_main
api STREAM.INFO.TASK_main
api STREAM.INFO.INBOX_main
api STREAM.INFO.DLV_main
api STREAM.INFO.EPT_REQ_main
api STREAM.INFO.EPT_main
api STREAM.MSG.GET.INBOX_main
api STREAM.MSG.GET.DLV_main
api STREAM.MSG.GET.EPT_REQ_main
api STREAM.MSG.GET.EPT_main
api CONSUMER.INFO.CHAT_main.fanout
api CONSUMER.INFO.INBOX_main.reader
pub cotal.main.live.delivery.{me}
sub cotal.main.live.delivery.{me}.reply.*
sub cotal.main.live.delivery.{me}.reply.nonce
";

/// The workflow endpoint called `endpoint`.
pub(crate) const WORKFLOW: &str = "
pub cotal.main.ept.endpoint.i1.1.t1.schedule
pull EPT_main ept_endpoint
";

pub(crate) const PROVISIONER: &str = "
put channels =defaults
";

/// The fan-out writer's consumer is not an observer's to pull from, acknowledge, change or delete.
/// The bare create is withheld too: it obeys a name in its body, also the fan-out's.
pub(crate) const OBSERVER: &str = "
sub cotal.main.chat.>
sub cotal.main.chat.*.*.>
sub cotal.main.chat.*.*.team.>
sub cotal.main.chat.*.*.team.backend
sub cotal.main.chat.*.*.ops
sub cotal.main.chat.*.*.secret
sub cotal.main.chat.{bob}.secret
kv presence
kv channels
kv membership
api STREAM.INFO.CHAT_main
below CONSUMER.CREATE.CHAT_main
below CONSUMER.INFO.CHAT_main
below CONSUMER.DELETE.CHAT_main
below CONSUMER.MSG.NEXT.CHAT_main
acks CHAT_main
except CONSUMER.CREATE.CHAT_main.fanout
except CONSUMER.DELETE.CHAT_main.fanout
except CONSUMER.MSG.NEXT.CHAT_main.fanout
except acks CHAT_main.fanout
pub cotal.main.live.delivery.{me}
sub cotal.main.live.delivery.{me}.reply.*
sub cotal.main.live.delivery.{me}.reply.nonce
";

/// What an admin may do beyond an observer.
pub(crate) const ADMIN: &str = "
sub cotal.main.inst.>
sub cotal.main.inst.{me}.>
sub cotal.main.inst.{bob}.>
sub cotal.main.svc.>
sub cotal.main.svc.reviewer.>
api STREAM.INFO.DM_main
below CONSUMER.CREATE.DM_main
below CONSUMER.INFO.DM_main
below CONSUMER.DELETE.DM_main
below CONSUMER.MSG.NEXT.DM_main
acks DM_main
";

pub(crate) const MEMBERSHIP_OBSERVER: &str = "
pub $SYS.REQ.ACCOUNT.{account}.CONNZ
pub $SYS.REQ.SERVER.PING
sub $SYS.ACCOUNT.{account}.CONNECT
sub $SYS.ACCOUNT.{account}.DISCONNECT
";

pub(crate) const CONNECTION_EVICTOR: &str = "
pub $SYS.REQ.SERVER.NDX.KICK
";

pub(crate) const CLAIMS_PUSHER: &str = "
pub $SYS.REQ.CLAIMS.UPDATE
";

/// What whoever lives in the durable account of a space of three may do in place of `kv presence`.
pub(crate) const SHARED_PRESENCE: &str = "
pub cotal.main.shared.API.STREAM.INFO.KV_cotal_presence_main
pub cotal.main.shared.API.STREAM.MSG.GET.KV_cotal_presence_main
pub cotal.main.shared.API.CONSUMER.CREATE.KV_cotal_presence_main.w1.$KV.cotal_presence_main.>
pub cotal.main.shared.API.CONSUMER.INFO.KV_cotal_presence_main.w1
pub cotal.main.shared.API.CONSUMER.DELETE.KV_cotal_presence_main.w1
pub cotal.main.shared.API.CONSUMER.MSG.NEXT.KV_cotal_presence_main.w1
";

/// What the daemon may do beside it: answer requests that crossed from the account of the agents.
pub(crate) const FORWARDED: &str = "
pub _R_.AbCdEf.GhIjKl
";

/// What an agent of a space of three may do beside: see how far CHAT itself has come.
pub(crate) const TRUE_CHAT: &str = "
pub cotal.main.durable.API.STREAM.INFO.CHAT_main
";

/// Whoever frees what an agent fills.
pub(crate) const JANITOR: &str = "
api STREAM.INFO.CHAT_main
api STREAM.INFO.DM_main
api STREAM.INFO.TASK_main
api STREAM.PURGE.CHAT_main
api STREAM.PURGE.DM_main
api STREAM.PURGE.TASK_main
";

/// What is tried beyond the lists above; most of it nobody may.
pub(crate) const TEMPTING: &str = "
pub cotal.main.shared.API.STREAM.DELETE.KV_cotal_presence_main
pub cotal.main.shared.API.CONSUMER.CREATE.KV_cotal_presence_main
pub cotal.main.durable.API.STREAM.INFO.CHAT_main
pub cotal.main.durable.API.CONSUMER.CREATE.CHAT_main
pub cotal.main.durable.API.CONSUMER.CREATE.CHAT_main.w1
pub cotal.main.durable.API.CONSUMER.CREATE.KV_cotal_channels_main
pub cotal.main.mirror.AbCdEf
sub cotal.main.mirror.>
pub _R_.AbCdEf.GhIjKl
sub _R_.>
sub >
sub *
sub *.>
sub cotal.>
sub cotal.main.>
sub cotal.other.>
sub cotal.other.chat.>
sub _INBOX.>
sub _INBOX.abc
sub _INBOX_*.>
sub _INBOX_{bob.conn}.>
sub _INBOX_{bob.conn}.reply
pub _INBOX_{bob.conn}.reply
sub $SYS.>
sub $SYS.ACCOUNT.*.CONNECT
sub $SYS.ACCOUNT.OTHER.CONNECT
sub $JS.>
sub $JS.API.>
sub $JS.ACK.>
sub $JS.EVENT.ADVISORY.>
sub $KV.>
sub $KV.cotal_acl_main.>
sub $KV.cotal_members_main.>
sub $KV.cotal_channels_main.>
sub $KV.cotal_presence_main.>
sub $KV.cotal_delivery_main.>
sub cotal.main.chat.>
sub cotal.main.chat.*.*.>
sub cotal.main.chat.*.*.secret
sub cotal.main.chat.{bob}.secret
sub cotal.main.inst.>
sub cotal.main.inst.{me}.>
sub cotal.main.inst.{bob}.>
sub cotal.main.svc.>
sub cotal.main.svc.reviewer.>
sub cotal.main.dinbox.>
sub cotal.main.dinbox.{bob}.*
sub cotal.main.dinbox.{me}.{uid}
sub cotal.main.dlv.>
sub cotal.main.dlv.{bob}.*
sub cotal.main.dlv.{me}.{uid}
sub cotal.main.ept.>
sub cotal.main.ept.endpoint.i1.1.t1.fire
sub cotal.main.ept.endpoint.*.*.*.fire
sub cotal.main.ctl.>
sub cotal.main.ctl.delivery.>
sub cotal.main.ctl.delivery.*.*
sub cotal.main.ctl.delivery.{me}
sub cotal.main.ctl.delivery.*.*.reply.*
sub cotal.main.ctl.delivery-admin.*.*
sub cotal.main.ctl.anycast-take.*.*
sub cotal.main.live.>
sub cotal.main.live.delivery.*.*
pub cotal.main.chat.{me}.secret
pub cotal.main.chat.{me}.ops
pub cotal.main.chat.{me}
pub cotal.main.chat.{bob}.team.backend
pub cotal.main.inst.{me}.{bob}
pub cotal.main.svc.reviewer.{bob}
pub cotal.main.ctl.delivery-admin.{me}
pub cotal.main.ctl.delivery-admin.{bob}
pub cotal.main.ctl.delivery.{me}.reply.nonce
pub cotal.main.dinbox.{me}.{uid}
pub cotal.main.dlv.{me}.{uid}
pub cotal.main.ept.endpoint.i1.1.t1.schedule
pub cotal.main.ept.endpoint.i1.1.t1.armed
pub cotal.main.ept.endpoint.i1.1.t1.fire
pub cotal.main.ept.other.i1.1.t1.schedule
pub cotal.other.chat.{me}.team.backend
pub cotal.other.ctl.delivery.{me}
put acl {me}.{uid}
put members team.backend/{me}.{uid}
put channels team.backend
put channels secret
put anycast req.1
put delivery other
put presence {bob}
pub $KV.cotal_presence_other.{me}
api STREAM.LIST
api STREAM.NAMES
api STREAM.INFO.CHAT_other
api STREAM.MSG.GET.DLV_other
api STREAM.INFO.KV_cotal_acl_other
api META.LEADER.STEPDOWN
api ACCOUNT.PURGE.{account}
api CONSUMER.CREATE.CHAT_main.chathist_{me-}-{uid}
api CONSUMER.CREATE.CHAT_main.chathist_{me-}-{uid}.cotal.main.chat.>
api CONSUMER.CREATE.CHAT_main.chathist_{me-}-{uid}.cotal.main.chat.*.*.secret
api CONSUMER.CREATE.CHAT_main.chathist_{bob-}-{bob.uid}.cotal.main.chat.*.*.team.backend
api CONSUMER.CREATE.CHAT_main.other.cotal.main.chat.*.*.team.backend
api CONSUMER.CREATE.DLV_main.dlv_{me-}-{uid}
api CONSUMER.CREATE.DLV_main.dlv_{me-}-{uid}.cotal.main.dlv.{me}.{uid}
api CONSUMER.CREATE.DM_main.dm_{me-}-{uid}.cotal.main.inst.{me}.>
api CONSUMER.CREATE.INBOX_main.other.cotal.main.dinbox.{me}.{uid}
api CONSUMER.DURABLE.CREATE.DLV_main.dlv_{me-}-{uid}
api CONSUMER.DURABLE.CREATE.DM_main.dm_{me-}-{uid}
api CONSUMER.DURABLE.CREATE.CHAT_main.chathist_{me-}-{uid}
api CONSUMER.DELETE.DLV_main.dlv_{me-}-{uid}
api CONSUMER.DELETE.DM_main.dm_{me-}-{uid}
api CONSUMER.CREATE.EPT_main.ept_endpoint.cotal.main.ept.endpoint.*.*.*.fire
api CONSUMER.CREATE.EPT_main.ept_endpoint.cotal.main.ept.>
api CONSUMER.DELETE.EPT_main.ept_endpoint
api CONSUMER.PAUSE.DLV_main.dlv_{me-}-{uid}
api CONSUMER.CREATE.CHAT_main.fanout
api CONSUMER.CREATE.CHAT_main.fanout.cotal.main.chat.>
own CHAT_main fanout cotal.main.chat.>
own INBOX_main reader cotal.main.dinbox.>
pull DM_main other
pull DLV_main other
pull TASK_main svc_builder
pull CHAT_main other
pull EPT_main ept_other
pull EPT_REQ_main timer-writer
pub $SYS.REQ.SERVER.PING
pub $SYS.REQ.SERVER.PING.CONNZ
pub $SYS.REQ.SERVER.NDX.CONNZ
pub $SYS.REQ.SERVER.NDX.KICK
pub $SYS.REQ.SERVER.NDX.LDM
pub $SYS.REQ.SERVER.NDX.RELOAD
pub $SYS.REQ.SERVER.RELOAD
pub $SYS.REQ.ACCOUNT.PING.CONNZ
pub $SYS.REQ.ACCOUNT.PING.STATZ
pub $SYS.REQ.ACCOUNT.{account}.CONNZ
pub $SYS.REQ.ACCOUNT.{account}.SUBSZ
pub $SYS.REQ.ACCOUNT.{account}.JSZ
pub $SYS.REQ.ACCOUNT.{account}.INFO
pub $SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP
pub $SYS.REQ.ACCOUNT.OTHER.CONNZ
pub $SYS.REQ.USER.INFO
pub $SYS.REQ.CLAIMS.UPDATE
pub $SYS.REQ.CLAIMS.DELETE
pub $SYS.REQ.CLAIMS.LIST
pub $SYS.REQ.CLAIMS.PACK
pub $SYS.ACCOUNT.{account}.CONNECT
pub $SYS.DEBUG.SUBSCRIBERS
pub $SRV.PING
";

/// The provisioner's calls on every stream; `{}` is the stream.
pub(crate) const PROVISIONING: [&str; 4] = [
    "api STREAM.CREATE.{}",
    "api STREAM.UPDATE.{}",
    "api STREAM.INFO.{}",
    "below CONSUMER.CREATE.{}",
];

/// Every table.
pub(crate) const ALL: [&str; 19] = [
    JANITOR,
    SHARED_PRESENCE,
    FORWARDED,
    TRUE_CHAT,
    EVERYONE,
    AGENT,
    ROLE,
    DELIVERY,
    MEMBERSHIP_RW,
    SUPERVISOR,
    OPERATOR,
    WORKFLOW,
    PROVISIONER,
    OBSERVER,
    ADMIN,
    MEMBERSHIP_OBSERVER,
    CONNECTION_EVICTOR,
    CLAIMS_PUSHER,
    TEMPTING,
];

/// Every stream of the space.
pub(crate) const STREAMS: [&str; 16] = [
    "CHAT_main",
    "DM_main",
    "TASK_main",
    "INBOX_main",
    "DLV_main",
    "EPT_REQ_main",
    "EPT_main",
    "KV_cotal_presence_main",
    "KV_cotal_channels_main",
    "KV_cotal_members_main",
    "KV_cotal_acl_main",
    "KV_cotal_membership_main",
    "KV_cotal_delivery_main",
    "KV_cotal_manager_main",
    "KV_cotal_anycast_main",
    "KV_cotal_dead_main",
];

/// Every JetStream call on a stream; `{}` is the stream.
pub(crate) const CALLS: [&str; 27] = [
    "STREAM.CREATE.{}",
    "STREAM.UPDATE.{}",
    "STREAM.DELETE.{}",
    "STREAM.PURGE.{}",
    "STREAM.INFO.{}",
    "STREAM.MSG.GET.{}",
    "STREAM.MSG.DELETE.{}",
    "STREAM.SNAPSHOT.{}",
    "STREAM.RESTORE.{}",
    "STREAM.LEADER.STEPDOWN.{}",
    "STREAM.PEER.REMOVE.{}",
    "DIRECT.GET.{}",
    "DIRECT.GET.{}.some.subject",
    "CONSUMER.CREATE.{}",
    "CONSUMER.CREATE.{}.other",
    "CONSUMER.CREATE.{}.other.some.filter",
    "CONSUMER.CREATE.{}.other.>",
    "CONSUMER.DURABLE.CREATE.{}.other",
    "CONSUMER.LIST.{}",
    "CONSUMER.NAMES.{}",
    "CONSUMER.INFO.{}.other",
    "CONSUMER.DELETE.{}.other",
    "CONSUMER.MSG.NEXT.{}.other",
    "CONSUMER.PAUSE.{}.other",
    "CONSUMER.RESET.{}.other",
    "CONSUMER.UNPIN.{}.other",
    "CONSUMER.LEADER.STEPDOWN.{}.other",
];
