//! An agent's name and the principal behind it.

use cotal_wire::Principal;

use crate::error::ManagerError;

/// The owner of every agent of a local mesh.
const LOCAL: &str = "local";

/// A display name; lowercased it is the actor of the principal `local.<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentName {
    display: String,
    principal: Principal,
}

impl AgentName {
    /// Reads a name.
    ///
    /// # Errors
    /// When it holds anything but letters, digits and `_`.
    pub fn parse(name: &str) -> Result<Self, ManagerError> {
        let principal = Principal::new(LOCAL, &name.to_ascii_lowercase())
            .map_err(|_| ManagerError::Name(name.chars().take(128).collect()))?;
        Ok(Self { display: name.to_owned(), principal })
    }

    /// The name as given.
    #[must_use]
    pub fn display(&self) -> &str {
        &self.display
    }

    /// `local.<name lowercased>`.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_a_local_principal_and_keeps_its_case() {
        let name = AgentName::parse("Bob_2").unwrap();
        assert_eq!((name.display(), name.principal().as_str()), ("Bob_2", "local.bob_2"));
    }

    #[test]
    fn malformed_names_are_refused_not_rewritten() {
        let long = "a".repeat(129);
        for bad in ["", "a b", "a-b", "a.b", "ä", "*", ">", "a\n", &long] {
            assert!(AgentName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
