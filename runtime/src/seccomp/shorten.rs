//! A program that decides the same in fewer instructions.
//!
//! The kernel translates a filter anew for every process that loads it, for every container and every exec, so its
//! length is paid for each time. libseccomp compares a call's number with each number of the policy; most neighbours
//! have the same fate, so a tree of ranges says it in a fraction. What looks at arguments is taken over as it is.

mod decide;

use std::collections::BTreeSet;

use decide::decide;

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const EQUAL: u16 = 0x15;
const GREATER: u16 = 0x25;
const GREATER_EQUAL: u16 = 0x35;
const BITS: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Where `struct seccomp_data` has the call's number.
const NUMBER: u32 = 0;
/// Where it has the architecture.
const ARCHITECTURE: u32 = 4;

/// Bytes of `struct sock_filter`.
const SIZE: usize = 8;

/// `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

/// What comes of a call when its number and architecture are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// This.
    Return(u32),
    /// The arguments tell, from this instruction on.
    Look(usize),
}

/// Calls of one fate: from this number to the next run's.
type Run = (u32, End);

/// The shorter program; none when this one is not as libseccomp writes them, or short enough.
pub(super) fn shorten(program: &[u8]) -> Option<Vec<u8>> {
    let old = parse(program)?;
    let (architectures, numbers) = compared(&old)?;
    let other = (0..).find(|value| !architectures.contains(value))?;
    let others = runs(&old, other, &numbers)?;
    let mut new = vec![instruction(LOAD, ARCHITECTURE)];
    // Where in `new` the old program is looked into, and where in that.
    let mut looks = Vec::new();
    for &architecture in &architectures {
        let own = runs(&old, architecture, &numbers)?;
        if own != others {
            let mut block = Vec::new();
            let mut places = Vec::new();
            decide(&own, &mut block, &mut places);
            new.push(Instruction {
                yes: 1,
                ..instruction(EQUAL, architecture)
            });
            new.push(instruction(JUMP, u32::try_from(block.len()).ok()?));
            looks.extend(places.iter().map(|(at, to)| (at + new.len(), *to)));
            new.extend(block);
        }
    }
    let mut places = Vec::new();
    let begin = new.len();
    decide(&others, &mut new, &mut places);
    debug_assert!(places.iter().all(|(at, _)| *at >= begin));
    looks.extend(places);
    let offset = new.len();
    for (at, to) in looks {
        new[at] = instruction(JUMP, u32::try_from(offset + to - at - 1).ok()?);
    }
    new.extend_from_slice(&old);
    share_returns(&mut new)?;
    let (new, kept) = without_the_unreachable(&new)?;
    let is_shorter = new.len() < old.len();
    let mut pairs = architectures
        .iter()
        .chain([&other])
        .flat_map(|architecture| {
            let numbers = numbers.iter().chain([&0, &u32::MAX]);
            numbers.map(|number| (*architecture, *number))
        });
    let same = pairs.all(|(architecture, number)| {
        let before = walk(&old, architecture, number);
        let before = before.and_then(|end| match end {
            End::Look(at) => kept.get(offset + at).copied().flatten().map(End::Look),
            end @ End::Return(_) => Some(end),
        });
        before.is_some() && before == walk(&new, architecture, number)
    });
    (is_shorter && same).then(|| new.iter().flat_map(bytes).collect())
}

fn parse(program: &[u8]) -> Option<Vec<Instruction>> {
    let (chunks, rest) = program.as_chunks::<SIZE>();
    let read = |c: &[u8; SIZE]| Instruction {
        code: u16::from_ne_bytes([c[0], c[1]]),
        yes: c[2],
        no: c[3],
        k: u32::from_ne_bytes([c[4], c[5], c[6], c[7]]),
    };
    rest.is_empty().then(|| chunks.iter().map(read).collect())
}

fn bytes(instruction: &Instruction) -> [u8; SIZE] {
    let code = instruction.code.to_ne_bytes();
    let k = instruction.k.to_ne_bytes();
    let Instruction { yes, no, .. } = *instruction;
    [code[0], code[1], yes, no, k[0], k[1], k[2], k[3]]
}

fn instruction(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        yes: 0,
        no: 0,
        k,
    }
}

/// Where an instruction may go on, whatever is compared. All of it lies ahead.
fn successors(at: usize, instruction: &Instruction) -> Option<Vec<usize>> {
    let next = at + 1;
    Some(match instruction.code {
        RETURN => Vec::new(),
        JUMP => vec![next + usize::try_from(instruction.k).ok()?],
        EQUAL | GREATER | GREATER_EQUAL | BITS => vec![
            next + usize::from(instruction.yes),
            next + usize::from(instruction.no),
        ],
        _ => vec![next],
    })
}

/// The architectures that are compared with, and the numbers at which a comparison may turn out differently from the
/// number before.
fn compared(program: &[Instruction]) -> Option<(BTreeSet<u32>, BTreeSet<u32>)> {
    let (mut architectures, mut numbers) = (BTreeSet::new(), BTreeSet::from([0]));
    let mut seen = BTreeSet::new();
    let mut waiting = vec![(0, None)];
    while let Some((at, held)) = waiting.pop() {
        if !seen.insert((at, held)) {
            continue;
        }
        let instruction = program.get(at)?;
        let k = instruction.k;
        let mut held = held;
        match (instruction.code, held) {
            (LOAD, _) if matches!(k, NUMBER | ARCHITECTURE) => held = Some(k),
            // Arguments.
            (LOAD, _) => continue,
            (EQUAL, Some(ARCHITECTURE)) => drop(architectures.insert(k)),
            (EQUAL, Some(NUMBER)) => numbers.extend([Some(k), k.checked_add(1)].iter().flatten()),
            (GREATER, Some(NUMBER)) => numbers.extend(k.checked_add(1)),
            (GREATER_EQUAL, Some(NUMBER)) => drop(numbers.insert(k)),
            (JUMP | RETURN, _) => {}
            _ => return None,
        }
        let next = successors(at, instruction)?;
        waiting.extend(next.into_iter().map(|at| (at, held)));
    }
    Some((architectures, numbers))
}

/// Runs the program until it returns or looks at something else.
fn walk(program: &[Instruction], architecture: u32, number: u32) -> Option<End> {
    let (mut at, mut held) = (0, None);
    loop {
        let Instruction { code, yes, no, k } = *program.get(at)?;
        let branch = |taken: bool| 1 + usize::from(if taken { yes } else { no });
        at += match (code, held) {
            (LOAD, _) => {
                held = match k {
                    NUMBER => Some(number),
                    ARCHITECTURE => Some(architecture),
                    _ => return Some(End::Look(at)),
                };
                1
            }
            (JUMP, _) => 1 + usize::try_from(k).ok()?,
            (EQUAL, Some(held)) => branch(held == k),
            (GREATER, Some(held)) => branch(held > k),
            (GREATER_EQUAL, Some(held)) => branch(held >= k),
            (RETURN, _) => return Some(End::Return(k)),
            _ => return None,
        };
    }
}

/// The fates of all numbers of one architecture.
fn runs(program: &[Instruction], architecture: u32, numbers: &BTreeSet<u32>) -> Option<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    for &number in numbers {
        let end = walk(program, architecture, number)?;
        if runs.last().is_none_or(|(_, last)| *last != end) {
            runs.push((number, end));
        }
    }
    Some(runs)
}

/// Has every comparison go to where it ends up: over jumps, and to a return of the same value that others go to already.
fn share_returns(program: &mut [Instruction]) -> Option<()> {
    let mut shared = BTreeSet::new();
    for at in (0..program.len()).rev() {
        if !matches!(program[at].code, EQUAL | GREATER | GREATER_EQUAL | BITS) {
            continue;
        }
        let mut resolve = |offset: u8| -> Option<u8> {
            let reach = |to: usize| u8::try_from(to - at - 1).ok();
            let mut to = at + 1 + usize::from(offset);
            while program.get(to)?.code == JUMP {
                let next = to + 1 + usize::try_from(program[to].k).ok()?;
                if reach(next).is_none() {
                    break;
                }
                to = next;
            }
            let target = *program.get(to)?;
            if target.code == RETURN {
                let last = program.len().min(at + 2 + usize::from(u8::MAX));
                let mut known = shared.range(to..last).copied();
                // Or this one, which those in front reach for the longest.
                to = known.find(|place| program[*place] == target).unwrap_or(to);
                shared.insert(to);
            }
            reach(to)
        };
        let (yes, no) = (resolve(program[at].yes)?, resolve(program[at].no)?);
        (program[at].yes, program[at].no) = (yes, no);
    }
    Some(())
}

/// The program without the instructions that nothing leads to, and where the others are now.
fn without_the_unreachable(
    program: &[Instruction],
) -> Option<(Vec<Instruction>, Vec<Option<usize>>)> {
    let mut reached = vec![false; program.len()];
    *reached.first_mut()? = true;
    for (at, instruction) in program.iter().enumerate() {
        if reached[at] {
            for next in successors(at, instruction)? {
                *reached.get_mut(next)? = true;
            }
        }
    }
    let mut count = 0;
    let kept: Vec<Option<usize>> = reached
        .iter()
        .map(|reached| {
            count += usize::from(*reached);
            reached.then(|| count - 1)
        })
        .collect();
    let distance = |from: usize, to: usize| Some((*kept.get(to)?)? - (*kept.get(from)?)? - 1);
    let mut new = Vec::with_capacity(count);
    for (at, instruction) in program.iter().enumerate().filter(|(at, _)| reached[*at]) {
        let mut moved = *instruction;
        match (instruction.code, successors(at, instruction)?.as_slice()) {
            (JUMP, [to]) => moved.k = u32::try_from(distance(at, *to)?).ok()?,
            (_, [yes, no]) => {
                moved.yes = u8::try_from(distance(at, *yes)?).ok()?;
                moved.no = u8::try_from(distance(at, *no)?).ok()?;
            }
            _ => {}
        }
        new.push(moved);
    }
    Some((new, kept))
}
