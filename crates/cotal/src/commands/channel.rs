//! `cotal channel`: how the channels of a space deliver.

use std::collections::{BTreeMap, BTreeSet};

use cotal_manager::rows::{bucket, read_all};
use cotal_nats::{Bucket, Connection, NatsError};
use cotal_wire::names::{self, DEFAULTS_KEY};
use cotal_wire::rows::{ChannelConfig, DeliveryClass, delivery_class};
use cotal_wire::{Channel, Space};
use serde_json::json;

use crate::args::{JsonArg, MeshArgs};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::told_after;

/// Configures or lists channels.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal channel set team.backend --class durable --description 'Backend work'
  cotal channel set --defaults --class live
  cotal channel list --json")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Change settings of a channel; those that are not named stay.
    Set(SetArgs),
    /// List the channels that are configured or have been posted on.
    List(ListArgs),
    /// Show one channel with its settings, as they stand after the space's defaults.
    #[command(after_help = "Example:\n  cotal channel show team.backend --json")]
    Show(OneArgs),
    /// Remove a channel's settings, so that the space's defaults count. Posts and members stay.
    #[command(after_help = "Example:\n  cotal channel remove team.backend")]
    Remove(OneArgs),
}

#[derive(Debug, clap::Args)]
struct OneArgs {
    /// The channel.
    #[arg(value_parser = channel)]
    channel: Channel,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Changes settings of a channel.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal channel set team.backend --class durable")]
struct SetArgs {
    /// The channel.
    #[arg(value_parser = channel, required_unless_present = "defaults")]
    channel: Option<Channel>,
    /// Change the space's defaults instead of one channel.
    #[arg(long, conflicts_with = "channel")]
    defaults: bool,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    mesh: MeshArgs,
}

/// The settings of a channel.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Settings {
    /// `durable` keeps a private copy per member, `live` reaches who is subscribed.
    #[arg(long, value_name = "CLASS")]
    class: Option<Class>,
    /// Whether joiners are shown history.
    #[arg(long, value_name = "BOOL")]
    replay: Option<bool>,
    /// How far back, such as 24h.
    #[arg(long, value_name = "DURATION", value_parser = window)]
    replay_window: Option<String>,
    /// What the channel is for.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    description: Option<String>,
    /// What its members are asked to do; whoever joins is shown it.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    instructions: Option<String>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Class {
    Durable,
    Live,
}

/// Lists channels.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal channel list --json")]
struct ListArgs {
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    match args.command {
        Command::Set(args) => set(args, ctx).await,
        Command::List(args) => list(args, ctx).await,
        Command::Show(args) => show(args, ctx).await,
        Command::Remove(args) => remove(args, ctx).await,
    }
}

async fn show(args: OneArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    let (_, connection) = target.operator().await?;
    let (defaults, channels) = read(&connection, &target.space).await?;
    let Some(listed) = channels.get(&args.channel) else {
        let message = format!(
            "{} has no settings and no posts in space {}: `cotal channel list` shows those that do",
            args.channel, target.space
        );
        return Err(Failure::new(Exit::Absent, message).into());
    };
    let class = delivery_class(listed.config.as_ref(), defaults.as_ref());
    let (own, all) = (listed.config.clone().unwrap_or_default(), defaults.unwrap_or_default());
    let replay = own.replay.or(all.replay).unwrap_or(false);
    let window = own.replay_window.or(all.replay_window);
    let instructions = own.instructions.or(all.instructions);
    if args.output.json {
        ctx.out.json(&json!({
            "channel": args.channel, "class": class, "posts": listed.posts, "replay": replay,
            "replayWindow": window, "description": own.description, "instructions": instructions,
        }))?;
        return Ok(Exit::Ok);
    }
    let shown = match (replay, window) {
        (false, _) => "no history".to_owned(),
        (true, None) => "all history".to_owned(),
        (true, Some(window)) => format!("the history of {window}"),
    };
    let text = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let class = if class == DeliveryClass::Durable { "durable" } else { "live" };
    let fields = [
        ("channel", args.channel.to_string()),
        ("class", class.to_owned()),
        ("posts", listed.posts.to_string()),
        ("joiners are shown", shown),
        ("description", text(own.description)),
        ("instructions", text(instructions)),
    ];
    for (field, value) in fields {
        ctx.out.data(told_after(format_args!("{field:<18}"), &value))?;
    }
    Ok(Exit::Ok)
}

async fn remove(args: OneArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    let (_, connection) = target.operator().await?;
    let channels = bucket(&connection, &target.space, names::Bucket::Channels);
    let key = args.channel.as_str();
    let entry = channels.get(key).await?;
    let Some(revision) = entry.filter(|entry| entry.live().is_some()).map(|e| e.revision) else {
        let message = format!("{key} has no settings of its own in space {}", target.space);
        return Err(Failure::new(Exit::Absent, message).into());
    };
    channels.delete(key, Some(revision)).await?;
    if args.output.json {
        ctx.out.json(&json!({ "channel": args.channel, "removed": true }))?;
    }
    ctx.out.proven(format!("{key} has the defaults of space {} from now on", target.space));
    Ok(Exit::Ok)
}

async fn set(args: SetArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    if matches!(args.settings.class, Some(Class::Durable)) {
        target.demand_authenticated("durable channels")?;
    }
    let (_, connection) = target.operator().await?;
    let channels = bucket(&connection, &target.space, names::Bucket::Channels);
    let key = args.channel.as_ref().map_or(DEFAULTS_KEY, Channel::as_str);
    let settings = &args.settings;
    // Another change in between is met by reading again: settings that are not named stay.
    while let Err(error) = change(&channels, key, settings).await {
        match error.downcast_ref::<NatsError>() {
            Some(NatsError::Conflict { .. }) => {}
            _ => return Err(error),
        }
    }
    ctx.out.proven(format!("{key} is set in space {}", target.space));
    Ok(Exit::Ok)
}

async fn change(channels: &Bucket, key: &str, settings: &Settings) -> anyhow::Result<()> {
    let entry = channels.get(key).await?;
    let stored = entry.as_ref().and_then(|entry| entry.live());
    // A value that is no config is none: the manager owns these rows and may write over it.
    let before = stored.and_then(|value| ChannelConfig::parse(value).ok());
    let config = settings.over(before.unwrap_or_default());
    let value = serde_json::to_vec(&config)?.into();
    match entry {
        Some(entry) => channels.update(key, value, entry.revision).await?,
        None => channels.create(key, value).await?,
    };
    Ok(())
}

impl Settings {
    fn over(&self, before: ChannelConfig) -> ChannelConfig {
        let class = self.class.map(|class| match class {
            Class::Durable => DeliveryClass::Durable,
            Class::Live => DeliveryClass::Live,
        });
        ChannelConfig {
            replay: self.replay.or(before.replay),
            replay_window: self.replay_window.clone().or(before.replay_window),
            delivery_class: class.or(before.delivery_class),
            description: self.description.clone().or(before.description),
            instructions: self.instructions.clone().or(before.instructions),
        }
    }
}

/// A channel as it is listed.
struct Listed {
    config: Option<ChannelConfig>,
    posts: u64,
}

async fn list(args: ListArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    let (_, connection) = target.operator().await?;
    let (defaults, channels) = read(&connection, &target.space).await?;
    let class = |listed: &Listed| delivery_class(listed.config.as_ref(), defaults.as_ref());
    if args.output.json {
        let rows: Vec<_> = channels
            .iter()
            .map(|(channel, listed)| {
                let (class, posts) = (class(listed), listed.posts);
                json!({"channel": channel, "class": class, "posts": posts, "config": listed.config})
            })
            .collect();
        ctx.out.json(&json!({"defaults": defaults, "channels": rows}))?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = channels
        .iter()
        .map(|(channel, listed)| {
            let own = listed.config.as_ref();
            let is_own = own.is_some_and(|config| config.delivery_class.is_some());
            let description = own.and_then(|config| config.description.clone());
            let class = match class(listed) {
                DeliveryClass::Durable => "durable",
                DeliveryClass::Live => "live",
            };
            vec![
                channel.to_string(),
                class.to_owned(),
                if is_own { "own" } else { "default" }.to_owned(),
                listed.posts.to_string(),
                description.unwrap_or_default(),
            ]
        })
        .collect();
    let heading = ["CHANNEL", "CLASS", "FROM", "POSTS", "DESCRIPTION"];
    ctx.out.table(&heading, &rows, "no channel is configured or has posts yet")?;
    Ok(Exit::Ok)
}

/// The channels of a space that are configured or have been posted on.
pub async fn known(connection: &Connection, space: &Space) -> anyhow::Result<BTreeSet<Channel>> {
    let (_, channels) = read(connection, space).await?;
    Ok(channels.into_keys().collect())
}

type Channels = BTreeMap<Channel, Listed>;

async fn read(
    connection: &Connection,
    space: &Space,
) -> anyhow::Result<(Option<ChannelConfig>, Channels)> {
    let mut channels = Channels::new();
    let mut defaults = None;
    for (key, row) in read_all(&bucket(connection, space, names::Bucket::Channels)).await? {
        let config = ChannelConfig::parse(&row.value).ok();
        if key == DEFAULTS_KEY {
            defaults = config;
        } else if let Ok(channel) = Channel::parse(&key) {
            let posts = 0;
            channels.insert(channel, Listed { config, posts });
        }
    }
    let (stream, filter) = (space.chat_stream(), space.chat_all());
    let mut offset = 0;
    loop {
        let page = connection.stream_info_subjects(&stream, &filter, offset).await?;
        offset += page.subjects.len() as u64;
        for (subject, posts) in &page.subjects {
            if let Some((_, channel)) = space.parse_chat(subject) {
                let none = Listed { config: None, posts: 0 };
                channels.entry(channel).or_insert(none).posts += posts;
            }
        }
        if page.subjects.is_empty() || offset >= page.total {
            return Ok((defaults, channels));
        }
    }
}

fn channel(text: &str) -> Result<Channel, String> {
    Channel::parse(text).map_err(|e| e.to_string())
}

/// A duration such as `90s`, `30m`, `24h` or `7d`.
fn window(text: &str) -> Result<String, String> {
    let digits = text.trim_end_matches(['s', 'm', 'h', 'd']);
    let is_one_unit = text.len() == digits.len() + 1;
    match digits.parse::<u32>() {
        Ok(1..) if is_one_unit => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not a duration: write 90s, 30m, 24h or 7d")),
    }
}

/// Refuses an empty name early; used by commands that take a channel.
pub fn required(text: &str) -> anyhow::Result<Channel> {
    Channel::parse(text).map_err(|e| Failure::new(Exit::Usage, e.to_string()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_not_named_stay() {
        let before = ChannelConfig {
            description: Some("old".to_owned()),
            delivery_class: Some(DeliveryClass::Durable),
            ..ChannelConfig::default()
        };
        let settings = Settings {
            class: Some(Class::Live),
            replay: None,
            replay_window: Some("24h".to_owned()),
            description: None,
            instructions: None,
        };
        let after = settings.over(before);
        assert_eq!(after.delivery_class, Some(DeliveryClass::Live));
        assert_eq!(after.description.as_deref(), Some("old"));
        assert_eq!(after.replay_window.as_deref(), Some("24h"));
    }

    #[test]
    fn windows_have_one_number_and_one_unit() {
        for good in ["90s", "30m", "24h", "7d"] {
            assert!(window(good).is_ok(), "{good}");
        }
        for bad in ["", "h", "0h", "24", "24hh", "-1h", "1h30m", "x"] {
            assert!(window(bad).is_err(), "{bad}");
        }
    }
}
