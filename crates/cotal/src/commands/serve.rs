//! `cotal serve`: works off the requests of a role.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use cotal_client::{Draft, Endpoint, Event, Holder, Notice, ResultError, Role, RoleRequest};
use cotal_wire::limits::MAX_RESULT;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, role};
use crate::commands::credential_watch::{CredentialWatch, Lost};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::{Output, told_after};

/// Well within the 60 s after which the broker gives a request to another holder.
const PROGRESS: Duration = Duration::from_secs(20);
/// How long the output of a command that has ended is read on: a child that it left behind may hold
/// it open.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// A daemon that hangs does not keep a holder that was stopped; its request comes again after 60 s.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(3);
/// The exit code by which a command says that a request cannot be done.
const CANNOT_BE_DONE: i32 = 100;
/// A request that a command failed on comes again after this long at most.
const LONGEST_DELAY: u64 = 60;

/// Works off the requests of a role, one at a time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each request is shown once the daemon has recorded that this agent has it. Without --exec it is
printed and counts as done. With --exec the command gets its text on standard input (with --json
the whole message) and, in its environment, COTAL_REQUEST_SEQ, COTAL_REQUEST_SENDER,
COTAL_REQUEST_ROLE and COTAL_REQUEST_DELIVERY. What it prints on standard output is the answer that
the sender gets, its first 32 KiB: `cotal ask --wait` prints it. Exit code 0 says that the request
is done, 100 that it cannot be done and nobody is to try it again; any other gives it back, and some
holder gets it again.

Examples:
  cotal serve reviewer --as bob
  cotal serve reviewer --as bob --exec './review.sh'
  cotal serve reviewer --as bob --count 1 --json")]
pub struct Args {
    /// The role; the agent must hold it.
    #[arg(value_name = "ROLE", value_parser = role)]
    role: Role,
    #[command(flatten)]
    agent: AgentArgs,
    /// Run this with `sh -c` for each request.
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true)]
    exec: Option<String>,
    /// End after this many requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let stopped = stop.clone().drop_guard();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        drop(stopped);
    });
    let mut worked = 0;
    loop {
        let seat = args.agent.seat(ctx)?;
        let watch = CredentialWatch::of(&seat);
        let endpoint = seat.connect(|options| options.send_only().present()).await?;
        let served = serve((&args, &mut worked), &endpoint, watch, ctx, &stop).await;
        endpoint.close().await;
        match served? {
            None => return Ok(Exit::Ok),
            Some(Lost::Over(why)) => return Err(why),
            Some(Lost::Replaced) => {
                ctx.out.note("the credential's file was replaced: connecting with it");
            }
        }
    }
}

/// Works requests off until told to stop, or until the credential is lost.
async fn serve(
    (args, worked): (&Args, &mut u64),
    endpoint: &Endpoint,
    watch: CredentialWatch,
    ctx: &Context,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Lost>> {
    let no_role = |why: String| anyhow::Error::from(Failure::new(Exit::Denied, why));
    let mut holder = endpoint.holder().map_err(|error| no_role(error.to_string()))?;
    if *holder.role() != args.role {
        let (own, held) = (endpoint.principal(), holder.role());
        return Err(no_role(format!("{own} holds the role {held}, not {}", args.role)));
    }
    let served = tokio::select! {
        served = work_off((args, worked), &mut holder, ctx, stop) => served.map(|()| None),
        lost = tell(endpoint, watch, ctx.out) => Ok(Some(lost)),
    };
    holder.close().await;
    served
}

/// Says what stands in the way, and when it does not any more; ends when the credential is lost.
async fn tell(endpoint: &Endpoint, mut watch: CredentialWatch, out: Output) -> Lost {
    loop {
        let event = tokio::select! {
            biased;
            event = endpoint.next() => event,
            lost = watch.lost() => return lost,
        };
        match event {
            Some(Event::Notice(notice)) => {
                watch.heard(&notice);
                match notice {
                    Notice::RequestsServed { .. } | Notice::Reconnected => out.note(notice),
                    _ => out.warn(notice),
                }
            }
            Some(Event::Message(_)) => {}
            None => return std::future::pending().await,
        }
    }
}

async fn work_off(
    (args, worked): (&Args, &mut u64),
    holder: &mut Holder,
    ctx: &Context,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    while args.count.is_none_or(|count| *worked < count) {
        let request = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            request = holder.next() => request,
        };
        let Some(request) = request else { break };
        match &args.exec {
            None => print(request, args.json, ctx).await?,
            Some(command) => execute(request, command, args.json, ctx, stop).await?,
        }
        *worked += 1;
    }
    Ok(())
}

async fn print(request: RoleRequest, json: JsonArg, ctx: &Context) -> anyhow::Result<()> {
    let printed = if json.json {
        ctx.out.json(&as_json(&request))
    } else {
        let (seq, sender) = (request.seq, &request.sender);
        let line = told_after(format_args!("{seq} {sender}:"), &request.text());
        ctx.out.data(line).map_err(Into::into)
    };
    match printed {
        Ok(()) => Ok(request.ack().await?),
        Err(unprinted) => {
            request.give_back(None).await?;
            Err(unprinted)
        }
    }
}

fn as_json(request: &RoleRequest) -> Value {
    let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    json!({
        "seq": request.seq,
        "sender": request.sender,
        "role": request.role,
        "delivery": request.delivery,
        "text": request.text(),
        "message": message,
    })
}

async fn execute(
    request: RoleRequest,
    command: &str,
    json: JsonArg,
    ctx: &Context,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (seq, sender) = (request.seq, request.sender.clone());
    let ended = tokio::select! {
        ended = commanded(&request, command, json) => ended,
        () = stop.cancelled() => {
            // Without a daemon it goes back all the same, and is told as taken until it is again.
            let back = request.give_back_with("its holder was stopped", None);
            let _ = tokio::time::timeout(GIVEN_BACK_WITHIN, back).await;
            ctx.out.warn(format_args!("request {seq} from {sender} is given back unfinished"));
            return Ok(());
        }
    };
    match ended {
        Ok((status, answer)) if status.success() => {
            told(request.complete(answer).await, seq, ctx);
            ctx.out.note(format_args!("request {seq} from {sender} is done"));
            Ok(())
        }
        Ok((status, reason)) if status.code() == Some(CANNOT_BE_DONE) => {
            told(request.fail(reason).await, seq, ctx);
            ctx.out.warn(format_args!("request {seq} from {sender} failed and is not tried again"));
            Ok(())
        }
        Ok((status, _)) => {
            let delay = delay_after(request.delivery);
            let why = format!("the command ended with {status}");
            told(request.give_back_with(why.as_str(), Some(delay)).await, seq, ctx);
            ctx.out.warn(format_args!("request {seq} from {sender} is given back: {why}"));
            Ok(())
        }
        Err(error) => {
            request.give_back(None).await?;
            Err(error)
        }
    }
}

/// What the sender does not learn, the holder is told.
fn told(recorded: Result<(), ResultError>, seq: u64, ctx: &Context) {
    if let Err(error) = recorded {
        let why = anyhow::Error::from(error);
        ctx.out.warn(format_args!("request {seq}: {why:#}"));
    }
}

/// As much of what a command printed as fits into an answer.
fn answer_of(mut printed: Vec<u8>) -> Draft {
    printed.truncate(MAX_RESULT);
    let mut text = String::from_utf8_lossy(&printed).trim_end().to_owned();
    // Escapes take room; what is cut off is at the end.
    let size = |text: &str| serde_json::to_string(text).map_or(0, |json| json.len());
    while size(&text) > MAX_RESULT - 64 {
        let fewer = text.chars().count() * 9 / 10;
        text = text.chars().take(fewer).collect();
    }
    if text.is_empty() { Draft::default() } else { Draft::text(text) }
}

/// Runs the command over one request, and tells the broker meanwhile that it is still worked on.
async fn commanded(
    request: &RoleRequest,
    command: &str,
    json: JsonArg,
) -> anyhow::Result<(ExitStatus, Draft)> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .env("COTAL_REQUEST_SEQ", request.seq.to_string())
        .env("COTAL_REQUEST_SENDER", request.sender.as_str())
        .env("COTAL_REQUEST_ROLE", request.role.as_str())
        .env("COTAL_REQUEST_DELIVERY", request.delivery.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("`sh` cannot be run")?;
    let input = if json.json { request.body.to_vec() } else { request.text().into_bytes() };
    let stdin = child.stdin.take();
    let feed = async move {
        if let Some(mut stdin) = stdin {
            // A command need not read all, or anything, of what it is given.
            let _ = stdin.write_all(&input).await;
        }
    };
    tokio::pin!(feed);
    let mut fed = false;
    let mut stdout = child.stdout.take();
    let (mut printed, mut chunk) = (Vec::new(), vec![0; 8 * 1024]);
    let mut ended = None;
    let mut over = Instant::now();
    let mut progress = interval(PROGRESS);
    loop {
        tokio::select! {
            status = child.wait(), if ended.is_none() => {
                ended = Some(status.context("the command's end is not known")?);
                over = Instant::now() + LAST_OUTPUT;
            }
            () = &mut feed, if !fed => fed = true,
            read = read_some(&mut stdout, &mut chunk), if stdout.is_some() => match read {
                // What does not fit is read all the same: the command is not to hang on it.
                Ok(1..) if printed.len() > MAX_RESULT => {}
                Ok(count @ 1..) => printed.extend_from_slice(&chunk[..count]),
                Ok(0) | Err(_) => stdout = None,
            },
            () = sleep_until(over), if ended.is_some() => stdout = None,
            _ = progress.tick() => {
                if let Err(error) = request.progress().await {
                    tracing::debug!(%error, "the broker may give the request to another holder");
                }
            }
        }
        if let (Some(status), None) = (ended, &stdout) {
            return Ok((status, answer_of(printed)));
        }
    }
}

async fn read_some(stdout: &mut Option<ChildStdout>, chunk: &mut [u8]) -> io::Result<usize> {
    match stdout {
        Some(stdout) => stdout.read(chunk).await,
        None => Ok(0),
    }
}

/// 2, 4, 8, … seconds, so that a request that always fails does not run hot.
fn delay_after(delivery: u64) -> Duration {
    let doublings = u32::try_from(delivery.min(6)).unwrap_or(6);
    Duration::from_secs(2_u64.pow(doublings).min(LONGEST_DELAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_keeps_failing_comes_more_and_more_rarely() {
        let seconds: Vec<_> = (1..9).map(|n| delay_after(n).as_secs()).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(delay_after(u64::MAX).as_secs(), 60);
    }

    #[test]
    fn an_answer_fits_however_much_was_printed() {
        for printed in [vec![b'x'; 100_000], vec![0x01; 100_000], vec![0xff; 100_000]] {
            let text = format!("{:?}", answer_of(printed));
            assert!(text.len() < MAX_RESULT * 4, "{}", text.len());
        }
        assert!(format!("{:?}", answer_of(b" \n".to_vec())).contains("parts: []"));
    }
}
