//! Whether a post is stored (`findPost`): for a sender that got no confirmation and would otherwise
//! post it a second time.

use cotal_nats::headers;
use cotal_wire::Principal;
use cotal_wire::posts::{FindPostArgs, FoundPost};
use time::OffsetDateTime;

use crate::control::rail::Rail;
use crate::registry::RegistryError;

/// Posts read at once. CHAT keeps a bounded number of one sender on one channel, so a search ends.
const PAGE: usize = 32;
/// A post may have been stored by a broker whose clock is behind its sender's.
const CLOCKS_DIFFER_MS: i64 = 10 * 60 * 1_000;

/// Searches for a post of `caller`; only the caller can have posted under this subject.
pub(crate) async fn find_post(
    rail: &Rail,
    caller: &Principal,
    args: &FindPostArgs,
) -> Result<FoundPost, RegistryError> {
    let (stream, subject) = (rail.space.chat_stream(), rail.space.chat(caller, &args.channel));
    let since = args.since.saturating_sub(CLOCKS_DIFFER_MS).max(0);
    let since = OffsetDateTime::from_unix_timestamp_nanos(i128::from(since) * 1_000_000).ok();
    let mut page = match since {
        Some(since) => rail.connection.direct_since(&stream, since, &subject, PAGE).await?,
        None => rail.connection.direct_next(&stream, 1, &subject, PAGE).await?,
    };
    loop {
        let found = page.messages.iter().find(|post| {
            headers::get(post.headers.as_ref(), headers::MSG_ID) == Some(args.id.as_str())
        });
        if let Some(post) = found {
            return Ok(FoundPost { seq: Some(post.seq) });
        }
        let Some(last) = page.messages.last().map(|post| post.seq).filter(|_| page.pending > 0)
        else {
            return Ok(FoundPost { seq: None });
        };
        page = rail.connection.direct_next(&stream, last + 1, &subject, PAGE).await?;
    }
}
