//! The static program in most images of the stories: a server, a crasher, a signal catcher and the like.
//!
//! It is built without shared libraries and runs alone in its image, so it brings every behaviour that a story
//! asks of a container.

#![forbid(unsafe_code)]

mod health;
mod probe;
mod serve;
mod shell;
mod signals;

use std::env;
use std::fs;
use std::io::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

const USAGE: &str = "usage: testapp COMMAND
  serve [PORT] [TEXT]     HTTP server: / answers TEXT, /hostname, /env/NAME, /file/PATH, /exit/CODE
  deaf PORT               takes connections and never answers
  health PORT SERVICE     gRPC server: SERVICE is healthy, every other one is unknown
  get URL                 prints what the URL answers; exit 1 unless the status is 200
  crash [CODE] [MS]       ends with CODE (1) after MS (0) milliseconds
  fail TIMES FILE         ends with 1 the first TIMES times, counting in FILE, and then with 0
  catch [ignore]          prints the signals it gets; TERM, INT and USR1 end it unless they are ignored
  sleep [MS]              sleeps, for ever without MS; TERM ends it
  eat MIB                 takes this much memory, touches all of it, and sleeps
  flood LINES [LENGTH]    prints numbered lines
  print TEXT...           prints its arguments, each on a line
  repeat TIMES MS PROGRAM...
                          runs a program so often, with pauses of so many milliseconds, and leaves the microseconds of CPU
                          for each in /dev/termination-log
  knock HOST:PORT TIMES MS
                          connects so often and asks for / so often, with pauses, and prints the microseconds of CPU for
                          one of both
  children COUNT          starts this many programs that sleep, at most 100, and prints how many it could
  probe                   tries what a container must not be able to do, and prints a line for each
";

fn main() -> ExitCode {
    let mut words = env::args_os();
    if let Some(arg0) = words.next().filter(|arg0| shell::is_name(arg0)) {
        say(&format!("sh: {}", shell::become_shell(&arg0, words)));
        return ExitCode::from(127);
    }
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            say(&format!("testapp: {e}"));
            ExitCode::from(2)
        }
    }
}

fn run(args: &[&str]) -> Result<u8, Box<dyn std::error::Error>> {
    match *args {
        ["serve"] => serve::serve(8080, "hello"),
        ["serve", port] => serve::serve(port.parse()?, "hello"),
        ["serve", port, text] => serve::serve(port.parse()?, text),
        ["deaf", port] => serve::deaf(port.parse()?),
        ["health", port, service] => health::serve(port.parse()?, service),
        ["get", url] => serve::get(url),
        ["crash"] => Ok(1),
        ["crash", code] => Ok(code.parse()?),
        ["crash", code, millis] => {
            say("crashing soon");
            thread::sleep(Duration::from_millis(millis.parse()?));
            Ok(code.parse()?)
        }
        ["fail", times, file] => fail(times.parse()?, file),
        ["catch"] => signals::catch(false),
        ["catch", "ignore"] => signals::catch(true),
        ["sleep"] => signals::sleep(None),
        ["sleep", millis] => signals::sleep(Some(Duration::from_millis(millis.parse()?))),
        ["eat", mib] => eat(mib.parse()?),
        ["flood", lines] => flood(lines.parse()?, 64),
        ["flood", lines, length] => flood(lines.parse()?, length.parse()?),
        ["print", ref texts @ ..] => {
            texts.iter().for_each(|text| say(text));
            Ok(0)
        }
        ["repeat", times, pause, program, ref args @ ..] => {
            repeat(times.parse()?, millis(pause)?, program, args)
        }
        ["knock", address, times, pause] => serve::knock(address, times.parse()?, millis(pause)?),
        ["children", count] => Ok(children(count.parse()?)),
        ["probe"] => Ok(probe::probe()),
        _ => Err(USAGE.into()),
    }
}

/// Writes a line to standard output; a reader that has gone is no reason to end.
fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").ok();
}

fn fail(times: u32, file: &str) -> Result<u8, Box<dyn std::error::Error>> {
    let before: u32 = fs::read_to_string(file)
        .unwrap_or_default()
        .trim()
        .parse()
        .unwrap_or(0);
    fs::write(file, (before + 1).to_string())?;
    say(&format!("run {}", before + 1));
    Ok(u8::from(before < times))
}

fn millis(text: &str) -> Result<Duration, std::num::ParseIntError> {
    Ok(Duration::from_millis(text.parse()?))
}

/// One after the other, as cheaply as the kernel allows: the standard library spawns by vfork. After each pause, little of
/// it is left in the caches of the processor.
fn repeat(
    times: u32,
    pause: Duration,
    program: &str,
    args: &[&str],
) -> Result<u8, Box<dyn std::error::Error>> {
    let before = cpu_micros()?;
    for _ in 0..times {
        std::thread::sleep(pause);
        let mut command = std::process::Command::new(program);
        let status = command
            .args(args)
            .stdout(std::process::Stdio::null())
            .status()?;
        if !status.success() {
            return Ok(1);
        }
    }
    let each = (cpu_micros()? - before) / u64::from(times.max(1));
    fs::write("/dev/termination-log", each.to_string())?;
    Ok(0)
}

/// What this process and those that it has waited for have used, as the kernel tells in hundredths of a second.
fn cpu_micros() -> Result<u64, Box<dyn std::error::Error>> {
    let text = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = text.rsplit_once(") ").ok_or("no name in /proc/self/stat")?;
    let ticks = fields.split(' ').skip(11).take(4).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()? * 10_000)
}

fn eat(mib: usize) -> Result<u8, Box<dyn std::error::Error>> {
    let mut held = Vec::new();
    for _ in 0..mib {
        held.push(vec![1_u8; 1 << 20]);
    }
    say(&format!("holding {mib} MiB"));
    let code = signals::sleep(None);
    drop(held);
    code
}

/// Those that it has started end with it.
fn children(count: usize) -> u8 {
    let mut made = Vec::new();
    let mut failure = None;
    while failure.is_none() && made.len() < count.min(100) {
        let mut command = std::process::Command::new("/proc/self/exe");
        match command.args(["sleep", "60000"]).spawn() {
            Ok(child) => made.push(child),
            Err(error) => failure = Some(error),
        }
    }
    let count = made.len();
    match &failure {
        None => say(&format!("made {count}")),
        Some(error) => say(&format!("made {count}: {error}")),
    }
    for child in &mut made {
        // One that has ended is as well.
        child.kill().and_then(|()| child.wait()).ok();
    }
    u8::from(failure.is_some())
}

fn flood(lines: u64, length: usize) -> Result<u8, Box<dyn std::error::Error>> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let filler = "x".repeat(length.saturating_sub(11));
    for line in 0..lines {
        writeln!(out, "{line:010} {filler}")?;
    }
    out.flush()?;
    Ok(0)
}
