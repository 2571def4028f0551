//! `cotal agent`: who may take part in a space.

use std::path::PathBuf;

use cotal_manager::{Added, Agent, AgentName, Agents, MoreGrants, NewAgent};
use cotal_wire::{ChannelPattern, Principal, Role};
use cotal_workspace::{FileStore, SecretKey, SecretKind};
use serde_json::json;

use crate::args::{JsonArg, MeshArgs};
use crate::commands::as_agent::role;
use crate::context::{Context, Target};
use crate::exit::{Exit, Failure};
use crate::output::plain;

/// Provisions or lists agents.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal agent add alice --read 'team.>' --post 'team.>'
  cotal agent add Bob --read team.backend,ops.* --post team.backend --role reviewer
  cotal agent list --json")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Provision an agent: its credential, its consumers and its ACL row.
    Add(AddArgs),
    /// Let an agent read, post or hold more than it may.
    Grant(GrantArgs),
    /// Take channels from what an agent may read.
    Narrow(NarrowArgs),
    /// Give an agent a new key, because the old one has leaked.
    Rekey(OneArgs),
    /// Show one agent.
    Show(OneArgs),
    /// End an agent's lifecycle for good, and free its name.
    Retire(RetireArgs),
    /// List the agents of a space.
    List(ListArgs),
}

/// Provisions an agent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
NAME becomes the principal local.<name lowercased> and stays the display name. A channel pattern
is a channel in which a whole segment may be * and the last may be >. Run again after a crash, it
completes what was begun; an agent that is complete is left as it is.

Example:
  cotal agent add alice --read 'team.>' --post 'team.>'")]
struct AddArgs {
    /// The display name: letters, digits and _.
    name: String,
    #[command(flatten)]
    rights: Rights,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Lets an agent read, post or hold more.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Inbox, memberships and identity stay. The agent's credential file is replaced; what it grants holds
once the agent connects next. What the agent may do already stays; a role takes the place of the one
that it had.

Examples:
  cotal agent grant bob --read 'ops.>' --post ops.alerts
  cotal agent grant bob --role reviewer")]
struct GrantArgs {
    /// The agent's name.
    name: String,
    #[command(flatten)]
    rights: Rights,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// What an agent may do.
#[derive(Debug, clap::Args)]
struct Rights {
    /// Channels it may read.
    #[arg(long, value_name = "CHANNEL", num_args = 1.., value_delimiter = ',', value_parser = pattern)]
    read: Vec<ChannelPattern>,
    /// Channels it may post on.
    #[arg(long, value_name = "CHANNEL", num_args = 1.., value_delimiter = ',', value_parser = pattern)]
    post: Vec<ChannelPattern>,
    /// The role whose requests it processes.
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Option<Role>,
}

/// Names one agent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`rekey` revokes the old key, which ends its connections, and replaces the credential file; inbox,
memberships and identity stay.

Examples:
  cotal agent show bob --json
  cotal agent rekey bob")]
struct OneArgs {
    /// The agent's name.
    name: String,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Takes channels from what an agent may read.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The old credential is revoked, and the daemon takes back what it had handed off of what was taken
and the agent has not acknowledged. Only then is the agent's credential file replaced. Without a
daemon it waits 15 s and ends with code 7 (5 when the daemon gives no answer in time): the rest
stands, nobody can read as the agent, and the same command run again finishes it.

Example:
  cotal agent narrow bob --read team.backend")]
struct NarrowArgs {
    /// The agent's name.
    name: String,
    /// Channels it may still read.
    #[arg(long, value_name = "CHANNEL", num_args = 1.., value_delimiter = ',', value_parser = pattern,
          required_unless_present = "read_nothing")]
    read: Vec<ChannelPattern>,
    /// Take every channel from it.
    #[arg(long, conflicts_with = "read")]
    read_nothing: bool,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Ends an agent's lifecycle.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The agent may read nothing any more, its key is revoked, and every connection of it is proven
gone; then its memberships, its inbox and its credential are deleted. Run again after a failure, it
continues; the name is held until all is proven, then free for a successor that inherits nothing.

Example:
  cotal agent retire bob")]
struct RetireArgs {
    /// The agent's name.
    name: String,
    /// Go on where this root knows neither its credential nor its key: nothing is revoked, and
    /// whoever has the credential could connect again.
    #[arg(long)]
    key_unknown: bool,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Lists the agents of a space.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal agent list --json")]
struct ListArgs {
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    match args.command {
        Command::Add(args) => add(args, ctx).await,
        Command::Grant(args) => grant(args, ctx).await,
        Command::Narrow(args) => narrow(args, ctx).await,
        Command::Rekey(args) => Box::pin(rekey(args, ctx)).await,
        Command::Show(args) => show(args, ctx).await,
        Command::Retire(args) => retire(args, ctx).await,
        Command::List(args) => list(args, ctx).await,
    }
}

async fn grant(args: GrantArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let name = AgentName::parse(&args.name)?;
    let target = ctx.target(&args.mesh)?;
    let Rights { read, post, role } = args.rights;
    let more = MoreGrants { read, post, role };
    if more.read.is_empty() && more.post.is_empty() && more.role.is_none() {
        let message = "nothing to grant: name channels with --read or --post, or a --role";
        return Err(Failure::new(Exit::Usage, message).into());
    }
    let grant = connect(&target).await?.widen(&name, &more).await?;
    let principal = grant.lifecycle.principal;
    let creds = creds_file(&target, &principal);
    if args.output.json {
        ctx.out.json(&json!({
            "principal": principal, "read": grant.read, "post": grant.post, "role": grant.role,
            "creds": creds,
        }))?;
    } else {
        ctx.out.data(creds.display())?;
    }
    ctx.out.proven(format!("{principal} may do more, once it connects next"));
    Ok(Exit::Ok)
}

async fn rekey(args: OneArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let name = AgentName::parse(&args.name)?;
    let target = ctx.target(&args.mesh)?;
    let principal = connect(&target).await?.rekey(&name).await?;
    let creds = creds_file(&target, &principal);
    if args.output.json {
        ctx.out.json(&json!({ "principal": principal, "creds": creds }))?;
    } else {
        ctx.out.data(creds.display())?;
    }
    ctx.out.proven(format!("{principal} has a new key; the old one is refused"));
    Ok(Exit::Ok)
}

async fn show(args: OneArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let name = AgentName::parse(&args.name)?;
    let target = ctx.target(&args.mesh)?;
    let agents = connect(&target).await?.list().await?;
    let Some(agent) = agents.iter().find(|agent| agent.principal == *name.principal()) else {
        let message = format!("there is no agent {}: `cotal agent list`", name.principal());
        return Err(Failure::new(Exit::Absent, message).into());
    };
    let creds = creds_file(&target, &agent.principal);
    if args.output.json {
        let mut shown = as_json(agent);
        shown["creds"] = json!(creds);
        ctx.out.json(&shown)?;
        return Ok(Exit::Ok);
    }
    let heading = ["name", "principal", "present", "role", "read", "post"];
    for (field, value) in heading.iter().zip(as_row(agent)) {
        ctx.out.data(format_args!("{field:<10}{}", plain(&value)))?;
    }
    ctx.out.data(format_args!("{:<10}{}", "creds", creds.display()))?;
    Ok(Exit::Ok)
}

fn creds_file(target: &Target, principal: &Principal) -> PathBuf {
    let key = SecretKey::new(&target.space, SecretKind::Agent(principal.clone()));
    FileStore::new(target.root.clone()).path(&key)
}

async fn narrow(args: NarrowArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let name = AgentName::parse(&args.name)?;
    let target = ctx.target(&args.mesh)?;
    let principal = connect(&target).await?.narrow(&name, &args.read).await?;
    let creds = creds_file(&target, &principal);
    if args.output.json {
        ctx.out.json(&json!({ "principal": principal, "read": args.read, "creds": creds }))?;
    } else {
        ctx.out.data(creds.display())?;
    }
    ctx.out.proven(format!("{principal} is narrowed; its credential file is replaced"));
    Ok(Exit::Ok)
}

async fn retire(args: RetireArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let name = AgentName::parse(&args.name)?;
    let target = ctx.target(&args.mesh)?;
    let agents = connect(&target).await?;
    let retired = match args.key_unknown {
        true => agents.retire_unrevoked(&name).await?,
        false => agents.retire(&name).await?,
    };
    let principal = &retired.principal;
    if args.output.json {
        ctx.out.json(&json!({
            "principal": principal, "channels": retired.channels, "kicked": retired.kicked,
        }))?;
    }
    ctx.out.proven(format!("{principal} is retired: no connection of it remains"));
    Ok(Exit::Ok)
}

async fn add(args: AddArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let name = AgentName::parse(&args.name)?;
    let target = ctx.target(&args.mesh)?;
    let agents = connect(&target).await?;
    let Rights { read, post, role } = args.rights;
    let agent = NewAgent { name, read, post, role };
    let added = agents.add(&agent).await?;
    let (state, principal) = described(&added);
    let creds = creds_file(&target, principal);
    if args.output.json {
        ctx.out.json(&json!({
            "principal": principal, "name": agent.name.display(), "space": target.space,
            "state": state, "creds": creds,
        }))?;
    } else {
        ctx.out.data(creds.display())?;
    }
    match added {
        Added::Created(_) => ctx.out.proven(format!("{principal} is provisioned")),
        Added::Completed(_) => {
            ctx.out.proven(format!("{principal}: an interrupted provisioning is completed"));
        }
        Added::Existing(_) => ctx.out.note(format!("{principal} was provisioned already")),
        Added::Different(_) => {
            ctx.out.warn(format!(
                "{principal} was provisioned already, with other channels, another role or \
                 another spelling of its name; nothing was changed: `cotal agent grant` gives it \
                 more, `cotal agent narrow` takes channels from it"
            ));
            return Ok(Exit::Conflict);
        }
    }
    Ok(Exit::Ok)
}

fn described(added: &Added) -> (&'static str, &Principal) {
    match added {
        Added::Created(principal) => ("created", principal),
        Added::Completed(principal) => ("completed", principal),
        Added::Existing(principal) => ("existing", principal),
        Added::Different(principal) => ("different", principal),
    }
}

async fn list(args: ListArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    let agents = connect(&target).await?.list().await?;
    if args.output.json {
        let rows: Vec<_> = agents.iter().map(as_json).collect();
        ctx.out.json(&rows)?;
        return Ok(Exit::Ok);
    }
    let heading = ["NAME", "PRINCIPAL", "PRESENT", "ROLE", "READ", "POST"];
    let rows: Vec<_> = agents.iter().map(as_row).collect();
    ctx.out.table(&heading, &rows, "no agents yet: `cotal agent add NAME`")?;
    for agent in &agents {
        for what in &agent.unfinished {
            ctx.out.warn(format!("{}: {what}", agent.principal));
        }
    }
    Ok(Exit::Ok)
}

fn as_json(agent: &Agent) -> serde_json::Value {
    json!({
        "principal": agent.principal, "name": agent.name, "present": agent.present,
        "role": agent.role, "read": agent.read, "post": agent.post,
        "unfinished": agent.unfinished,
    })
}

fn as_row(agent: &Agent) -> Vec<String> {
    let patterns = |patterns: &[ChannelPattern]| {
        let texts: Vec<_> = patterns.iter().map(ChannelPattern::as_str).collect();
        texts.join(",")
    };
    vec![
        agent.name.clone().unwrap_or_else(|| "-".to_owned()),
        agent.principal.to_string(),
        if agent.present { "yes" } else { "no" }.to_owned(),
        agent.role.as_ref().map_or("-".to_owned(), Role::to_string),
        patterns(&agent.read),
        agent.post.as_ref().map_or("?".to_owned(), |post| patterns(post)),
    ]
}

async fn connect(target: &Target) -> anyhow::Result<Agents> {
    target.demand_authenticated("agents")?;
    Ok(Agents::connect(&target.root, &target.space, &target.address()).await?)
}

fn pattern(text: &str) -> Result<ChannelPattern, String> {
    ChannelPattern::parse(text).map_err(|e| e.to_string())
}
