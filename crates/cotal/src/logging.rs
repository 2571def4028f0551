//! Where log lines go. Standard output is never one of the places.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Mutex;

use cotal_workspace::RotatingLog;
use cotal_workspace::log::DEFAULT_MAX_BYTES;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::args::LogFormat;
use crate::exit::{Exit, Failure};

/// Chooses what is logged; the syntax is that of `RUST_LOG`.
const FILTER_VARIABLE: &str = "COTAL_LOG";

/// Refuses a filter that cannot be parsed, before anything is done without it.
pub fn check() -> anyhow::Result<()> {
    let set = std::env::var_os(FILTER_VARIABLE).filter(|filter| !filter.is_empty());
    let Some(filter) = set else {
        return Ok(());
    };
    let read = filter.to_str().map(EnvFilter::try_new);
    match read {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => {
            let message = format!("{FILTER_VARIABLE} cannot be parsed: {error}");
            Err(Failure::new(Exit::Usage, message).into())
        }
        None => {
            Err(Failure::new(Exit::Usage, format!("{FILTER_VARIABLE} is not UTF-8 text")).into())
        }
    }
}

/// Logs of a command that a person runs: warnings, on standard error.
pub fn to_stderr(format: LogFormat) {
    let layer = layer(format, io::stderr().is_terminal(), io::stderr);
    let subscriber = tracing_subscriber::registry().with(filter("warn")).with(layer);
    let _ = subscriber.try_init();
}

/// Logs of a daemon: into its own file (LIF-7), and on standard error unless that leads there too.
pub fn to_file_and_stderr(path: &Path, format: LogFormat) -> io::Result<()> {
    let file = RotatingLog::open(path, DEFAULT_MAX_BYTES)?;
    let own = layer(format, false, Mutex::new(file));
    let console = (!leads_to(io::stderr(), path))
        .then(|| layer(format, io::stderr().is_terminal(), io::stderr));
    let subscriber = tracing_subscriber::registry().with(filter("info")).with(own).with(console);
    let _ = subscriber.try_init();
    Ok(())
}

/// The client library's own lines name no space, and whatever they tell `cotal-nats` classifies.
fn filter(default: &str) -> EnvFilter {
    let wanted = std::env::var(FILTER_VARIABLE).ok().filter(|filter| !filter.is_empty());
    wanted
        .and_then(|filter| EnvFilter::try_new(filter).ok())
        .unwrap_or_else(|| EnvFilter::new(format!("{default},async_nats=off")))
}

fn layer<S, W>(format: LogFormat, colours: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines =
        tracing_subscriber::fmt::layer().with_target(false).with_ansi(colours).with_writer(writer);
    match format {
        LogFormat::Human => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

fn leads_to(stream: impl std::os::fd::AsFd, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let stream =
        stream.as_fd().try_clone_to_owned().and_then(|fd| std::fs::File::from(fd).metadata());
    match (stream, std::fs::metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
