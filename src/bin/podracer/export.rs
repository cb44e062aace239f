//! `podracer export`: writes the policy of a saved model, whichever algorithm saved it.

use podracer::algos::registry;
use podracer::error::Result;
use podracer::rl::commands::export::ExportOptions;

pub fn export(options: &ExportOptions) -> Result<String> {
    options.export(registry::policy)
}
