//! What a channel's config says to whoever joins it.

use std::time::Duration;

use cotal_nats::{Bucket, Connection, NatsError};
use cotal_wire::names::{Bucket as Name, DEFAULTS_KEY};
use cotal_wire::rows::{ChannelConfig, DeliveryClass, LastValid, delivery_class, span};
use cotal_wire::{Channel, Space};

/// A joiner's view of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) class: DeliveryClass,
    pub(crate) replay: Replay,
    pub(crate) instructions: Option<String>,
}

/// What history a joiner is shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Replay {
    /// None: no config asks for it.
    #[default]
    Off,
    /// Whatever the channel stream still holds.
    All,
    /// What is not older.
    Last(Duration),
    /// None, because the window cannot be parsed.
    Unreadable(String),
}

/// Reads the channel's config and the space's defaults as they stand now.
pub(crate) async fn read(
    connection: &Connection,
    space: &Space,
    channel: &Channel,
) -> Result<Settings, NatsError> {
    let bucket = Bucket::new(connection, &space.bucket(Name::Channels));
    let own = config(&bucket, channel.as_str()).await?;
    let defaults = config(&bucket, DEFAULTS_KEY).await?;
    Ok(resolve(own.as_ref(), defaults.as_ref()))
}

/// The row of a key; under a garbled value the last valid one stands.
async fn config(bucket: &Bucket, key: &str) -> Result<Option<ChannelConfig>, NatsError> {
    let Some(newest) = bucket.get(key).await? else {
        return Ok(None);
    };
    let Some(value) = newest.live() else {
        return Ok(None);
    };
    let parse = |value: &[u8]| ChannelConfig::parse(value).ok();
    if let Some(config) = parse(value) {
        return Ok(Some(config));
    }
    Ok(match bucket.last_valid(key, newest.revision, parse).await? {
        LastValid::Row(config, _) => Some(config),
        LastValid::Deleted(_) | LastValid::Unknown => None,
    })
}

fn resolve(channel: Option<&ChannelConfig>, defaults: Option<&ChannelConfig>) -> Settings {
    let both = || [channel, defaults].into_iter().flatten();
    let replay = both().find_map(|config| config.replay).unwrap_or(false);
    let window = both().find_map(|config| config.replay_window.as_deref());
    let instructions = both().find_map(|config| config.instructions.clone());
    Settings {
        instructions: instructions.filter(|text| !text.trim().is_empty()),
        class: delivery_class(channel, defaults),
        replay: match (replay, window) {
            (false, _) => Replay::Off,
            (true, None) => Replay::All,
            (true, Some(text)) => {
                span(text).map_or_else(|| Replay::Unreadable(text.to_owned()), Replay::Last)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaying(replay: Option<bool>, window: Option<&str>) -> ChannelConfig {
        ChannelConfig {
            replay,
            replay_window: window.map(str::to_owned),
            ..ChannelConfig::default()
        }
    }

    #[test]
    fn history_is_shown_only_where_a_config_asks_for_it() {
        let on = replaying(Some(true), Some("24h"));
        let off = replaying(Some(false), None);
        let day = Replay::Last(Duration::from_secs(86_400));
        for (channel, defaults, want) in [
            (None, None, Replay::Off),
            (None, Some(&on), day.clone()),
            (Some(&off), Some(&on), Replay::Off),
            (Some(&on), Some(&off), day.clone()),
            (Some(&replaying(Some(true), None)), None, Replay::All),
            (Some(&replaying(Some(true), None)), Some(&on), day),
        ] {
            assert_eq!(resolve(channel, defaults).replay, want);
        }
    }

    #[test]
    fn windows_read_or_show_nothing() {
        for (text, ms) in [("0s", 0), ("1500ms", 1_500), ("90m", 5_400_000), ("7d", 604_800_000)] {
            assert_eq!(span(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "h", "24", "-1h", "1.5h", "1 h", "99999999999999999999d", "1w"] {
            assert_eq!(span(text), None, "{text}");
        }
        let odd = replaying(Some(true), Some("soon"));
        assert_eq!(resolve(Some(&odd), None).replay, Replay::Unreadable("soon".to_owned()));
    }
}
