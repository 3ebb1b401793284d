//! What a node says, in the words that a kubelet uses.

use anyhow::Result;
use hanok_e2e::cluster::Space;
use hanok_e2e::golden;
use hanok_e2e::runner::Story;
use hanok_e2e::stories;

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab: words_of_the_node_are_those_of_a_kubelet]
}

fn words_of_the_node_are_those_of_a_kubelet(space: &Space<'_>) -> Result<()> {
    golden::check_all(space)
}
