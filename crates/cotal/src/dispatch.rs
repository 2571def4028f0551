//! From a parsed command line to the command that it names.

use crate::cli::Command;
use crate::commands::{
    agent, ask, audit, channel, completions, dead, deliver, dm, doctor, down, history, host, inbox,
    join, leave, logs, manage, members, mint, pending, post, redeliver, request, requests, serve,
    service, space, status, timer, unread, up, who,
};
use crate::context::Context;
use crate::exit::Exit;

/// Runs one command. Its future is boxed: the commands differ much in size.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<Exit> {
    match command {
        Command::Up(args) => Box::pin(up::run(args, ctx)).await,
        Command::Down(args) => Box::pin(down::run(args, ctx)).await,
        Command::Deliver(args) => Box::pin(deliver::run(args, ctx)).await,
        Command::Host(args) => Box::pin(host::run(args, ctx)).await,
        Command::Mint(args) => Box::pin(mint::run(args, ctx)).await,
        Command::Manage(args) => Box::pin(manage::run(args, ctx)).await,
        Command::Status(args) => Box::pin(status::run(args, ctx)).await,
        Command::Doctor(args) => Box::pin(doctor::run(args, ctx)).await,
        Command::Service(args) => Box::pin(service::run(args, ctx)).await,
        Command::Space(args) => Box::pin(space::run(args, ctx)).await,
        Command::Agent(args) => Box::pin(agent::run(args, ctx)).await,
        Command::Channel(args) => Box::pin(channel::run(args, ctx)).await,
        Command::Members(args) => Box::pin(members::run(args, ctx)).await,
        Command::Who(args) => Box::pin(who::run(args, ctx)).await,
        Command::Audit(args) => Box::pin(audit::run(args, ctx)).await,
        Command::Pending(args) => Box::pin(pending::run(args, ctx)).await,
        Command::Dead(args) => Box::pin(dead::run(args, ctx)).await,
        Command::Redeliver(args) => Box::pin(redeliver::run(args, ctx)).await,
        Command::Post(args) => Box::pin(post::run(args, ctx)).await,
        Command::Dm(args) => Box::pin(dm::run(args, ctx)).await,
        Command::Ask(args) => Box::pin(ask::run(args, ctx)).await,
        Command::Requests(args) => Box::pin(requests::run(args, ctx)).await,
        Command::Request(args) => Box::pin(request::run(args, ctx)).await,
        Command::Serve(args) => Box::pin(serve::run(args, ctx)).await,
        Command::Timer(args) => Box::pin(timer::run(args, ctx)).await,
        Command::Join(args) => Box::pin(join::run(args, ctx)).await,
        Command::Leave(args) => Box::pin(leave::run(args, ctx)).await,
        Command::Inbox(args) => Box::pin(inbox::run(args, ctx)).await,
        Command::Unread(args) => Box::pin(unread::run(args, ctx)).await,
        Command::History(args) => Box::pin(history::run(args, ctx)).await,
        Command::Logs(args) => Box::pin(logs::run(args, ctx)).await,
        Command::Completions(args) => completions::run(&args),
    }
}
