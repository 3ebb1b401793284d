//! Finding the fate of a number, in as few instructions as there can be.

use std::ops::Range;

use super::{EQUAL, End, GREATER_EQUAL, Instruction, JUMP, LOAD, NUMBER, RETURN, Run, instruction};

/// Most numbers that are compared with one after the other.
const MAX_EXCEPTIONS: usize = 6;

/// Most runs for which the best plan is looked for: the time that takes grows with their third power.
const MAX_PLANNED: usize = 128;

/// Writes the instructions that find a number's run. Gives the places that look into the old program.
pub(super) fn decide(runs: &[Run], out: &mut Vec<Instruction>, looks: &mut Vec<(usize, usize)>) {
    if runs.len() > 1 {
        out.push(instruction(LOAD, NUMBER));
    }
    halve(runs, None, out, looks);
}

/// Splits the runs until a plan for them is quickly made. `behind` is the number behind the last one, unless that one has
/// no end.
fn halve(
    runs: &[Run],
    behind: Option<u32>,
    out: &mut Vec<Instruction>,
    looks: &mut Vec<(usize, usize)>,
) {
    if runs.len() <= MAX_PLANNED {
        let plans = plans(runs, behind);
        return find(runs, &plans, 0..runs.len(), out, looks);
    }
    let (below, above) = runs.split_at(runs.len() / 2);
    let middle = above[0].0;
    let jump = split(middle, out);
    halve(below, Some(middle), out, looks);
    land(jump, out);
    halve(above, behind, out, looks);
}

/// Goes on behind for what is below the number, and elsewhere for the others: where [`land`] says. The long jump is for
/// what the short one does not reach.
fn split(number: u32, out: &mut Vec<Instruction>) -> usize {
    out.push(Instruction {
        no: 1,
        ..instruction(GREATER_EQUAL, number)
    });
    out.push(instruction(JUMP, 0));
    out.len() - 1
}

fn land(jump: usize, out: &mut [Instruction]) {
    out[jump].k = u32::try_from(out.len() - jump - 1).unwrap_or(u32::MAX);
}

/// How the run of a number is found among some.
#[derive(Debug, Clone)]
enum Plan {
    /// There is one.
    Found,
    /// By whether the number is below that of this run.
    Split(usize),
    /// By comparing with each number whose fate is not that of the others.
    Except(Vec<Run>, End),
}

/// The plan with the fewest comparisons for every range of runs, by its first one and its length less one.
fn plans(runs: &[Run], end: Option<u32>) -> Vec<Vec<Plan>> {
    let mut plans = vec![vec![Plan::Found]; runs.len()];
    let mut costs = vec![vec![0]; runs.len()];
    for length in 2..=runs.len() {
        for first in 0..=runs.len() - length {
            let cost = |at: usize| costs[first][at - 1] + costs[first + at][length - at - 1] + 1;
            // Among equals, what halves.
            let at = (1..length).min_by_key(|&at| (cost(at), at.abs_diff(length / 2)));
            let at = at.unwrap_or(1);
            let behind = runs.get(first + length).map(|(number, _)| *number);
            let behind = behind.or(end);
            let (plan, cost) = match exceptions(&runs[first..first + length], behind) {
                Some((numbers, end)) if numbers.len() < cost(at) => {
                    let cost = numbers.len();
                    (Plan::Except(numbers, end), cost)
                }
                _ => (Plan::Split(first + at), cost(at)),
            };
            plans[first].push(plan);
            costs[first].push(cost);
        }
    }
    plans
}

fn find(
    runs: &[Run],
    plans: &[Vec<Plan>],
    range: Range<usize>,
    out: &mut Vec<Instruction>,
    looks: &mut Vec<(usize, usize)>,
) {
    let Some(&(_, end)) = runs.get(range.start) else {
        return;
    };
    match &plans[range.start][range.len() - 1] {
        Plan::Found => go(end, out, looks),
        Plan::Except(numbers, others) => {
            for &(number, end) in numbers {
                out.push(Instruction {
                    no: 1,
                    ..instruction(EQUAL, number)
                });
                go(end, out, looks);
            }
            go(*others, out, looks);
        }
        &Plan::Split(middle) => {
            let jump = split(runs[middle].0, out);
            find(runs, plans, range.start..middle, out, looks);
            land(jump, out);
            find(runs, plans, middle..range.end, out, looks);
        }
    }
}

/// Ends, or looks into the old program.
fn go(end: End, out: &mut Vec<Instruction>, looks: &mut Vec<(usize, usize)>) {
    match end {
        End::Return(value) => out.push(instruction(RETURN, value)),
        End::Look(at) => {
            looks.push((out.len(), at));
            out.push(instruction(JUMP, 0));
        }
    }
}

/// The numbers whose fate is not that of the others, and that of the others; none when there are many, for the kernel also
/// runs the program once for each number. `behind` is the number behind the last run, unless that one has no end.
fn exceptions(runs: &[Run], behind: Option<u32>) -> Option<(Vec<Run>, End)> {
    let numbers_of = |others: End| -> Option<Vec<Run>> {
        let mut numbers = Vec::new();
        for (index, &(first, end)) in runs.iter().enumerate() {
            if end == others {
                continue;
            }
            let behind = runs.get(index + 1).map(|(first, _)| *first).or(behind)?;
            if numbers.len() + usize::try_from(behind - first).ok()? > MAX_EXCEPTIONS {
                return None;
            }
            numbers.extend((first..behind).map(|number| (number, end)));
        }
        Some(numbers)
    };
    let ends = runs.iter().take(3).map(|(_, end)| *end);
    let found = ends.filter_map(|end| Some((numbers_of(end)?, end)));
    found.min_by_key(|(numbers, _)| numbers.len())
}
