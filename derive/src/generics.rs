//! The type parameters of the deriving type and their parts in the tree.

use std::collections::BTreeSet;

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{DeriveInput, Error, GenericParam, Generics, Result, parse_quote};

pub const REFERENCE: &str = "a tree owns its leaves; references are not allowed";

/// The type parameters by their part.
pub struct Parameters {
    generics: Generics,
    /// The leaf type of the impl: the type's own parameter, or a fresh one if all are nested.
    pub leaf: Ident,
    /// Returns true if `leaf` is a parameter of the type.
    owns_leaf: bool,
    nested: Vec<Ident>,
    /// Paths do not name the only field: `#[tree(transparent)]`.
    pub transparent: bool,
    /// Static parameters that static fields mention: they must be `Clone + Hash`.
    bounded: BTreeSet<Ident>,
}

impl Parameters {
    pub fn new(input: &DeriveInput) -> Result<Parameters> {
        if let Some(lifetime) = input.generics.lifetimes().next() {
            return Err(Error::new_spanned(&lifetime.lifetime, REFERENCE));
        }
        let (nested, transparent) = attributes(input)?;
        let all: Vec<&Ident> = input.generics.type_params().map(|p| &p.ident).collect();
        let own = match all.iter().find(|p| **p == "T" && !nested.contains(p)) {
            Some(leaf) => Some((*leaf).clone()),
            None if !nested.is_empty() => None,
            None => match all[..] {
                [only] => Some(only.clone()),
                [] => {
                    let message = format!(
                        "a tree needs a type parameter for its leaves: `{}<T>`",
                        input.ident
                    );
                    return Err(Error::new(input.ident.span(), message));
                }
                _ => {
                    let message = "which type parameter is the leaf? name it `T`, \
                                   or name the trees with #[tree(nested = ..)]";
                    return Err(Error::new_spanned(&input.generics, message));
                }
            },
        };
        Ok(Parameters {
            generics: input.generics.clone(),
            owns_leaf: own.is_some(),
            leaf: own.unwrap_or_else(|| format_ident!("__T")),
            nested,
            transparent,
            bounded: BTreeSet::new(),
        })
    }

    /// Returns true if a type with these tokens has leaves.
    pub fn has_leaves(&self, tokens: TokenStream) -> bool {
        mentions(tokens, &|ident| {
            (self.owns_leaf && *ident == self.leaf) || self.nested.contains(ident)
        })
    }

    /// Notes the parameters that a static field mentions.
    pub fn note_static(&mut self, tokens: &TokenStream) {
        for parameter in self.generics.type_params() {
            if mentions(tokens.clone(), &|ident| *ident == parameter.ident) {
                self.bounded.insert(parameter.ident.clone());
            }
        }
    }

    /// The parameters of the impl with their bounds, and its where clause.
    pub fn impl_generics(&self) -> (TokenStream, TokenStream) {
        let mut generics = self.generics.clone();
        let leaf = &self.leaf;
        if !self.owns_leaf {
            generics.params.insert(0, parse_quote!(#leaf));
        }
        let predicates = &mut generics.make_where_clause().predicates;
        predicates.push(parse_quote!(#leaf: ::podracer::tree::Leaf));
        for nested in &self.nested {
            predicates.push(parse_quote!(#nested: ::podracer::tree::Tree<#leaf>));
        }
        for parameter in &self.bounded {
            predicates.push(parse_quote!(#parameter: ::core::clone::Clone + ::core::hash::Hash));
        }
        let (impl_generics, _, where_clause) = generics.split_for_impl();
        (quote!(#impl_generics), quote!(#where_clause))
    }

    /// The arguments of the type: its own parameters, or those with other leaves.
    pub fn arguments(&self, other: Option<&Ident>) -> TokenStream {
        let leaf = &self.leaf;
        let arguments = self.generics.params.iter().map(|parameter| match (parameter, other) {
            (GenericParam::Type(p), Some(other)) if self.owns_leaf && p.ident == *leaf => {
                quote!(#other)
            }
            (GenericParam::Type(p), Some(other)) if self.nested.contains(&p.ident) => {
                let nested = &p.ident;
                quote!(<#nested as ::podracer::tree::Tree<#leaf>>::With<#other>)
            }
            (GenericParam::Type(p), _) => {
                let ident = &p.ident;
                quote!(#ident)
            }
            (GenericParam::Const(p), _) => {
                let ident = &p.ident;
                quote!(#ident)
            }
            (GenericParam::Lifetime(p), _) => quote!(#p),
        });
        quote!(<#(#arguments),*>)
    }
}

/// The parameters named by `#[tree(nested = M)]`, and whether there is `#[tree(transparent)]`.
fn attributes(input: &DeriveInput) -> Result<(Vec<Ident>, bool)> {
    let (mut nested, mut transparent) = (Vec::new(), false);
    for attribute in input.attrs.iter().filter(|a| a.path().is_ident("tree")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("transparent") {
                transparent = true;
                return Ok(());
            }
            if !meta.path.is_ident("nested") {
                let message =
                    "expected `nested = M`, a type parameter that is a tree, or `transparent`";
                return Err(meta.error(message));
            }
            let name: Ident = meta.value()?.parse()?;
            if !input.generics.type_params().any(|p| p.ident == name) {
                let message = format!("`{name}` is not a type parameter of `{}`", input.ident);
                return Err(Error::new(name.span(), message));
            }
            nested.push(name);
            Ok(())
        })?;
    }
    Ok((nested, transparent))
}

/// Returns true if an identifier for which `wanted` holds is among the tokens.
fn mentions(tokens: TokenStream, wanted: &impl Fn(&Ident) -> bool) -> bool {
    tokens.into_iter().any(|token| match token {
        proc_macro2::TokenTree::Ident(ident) => wanted(&ident),
        proc_macro2::TokenTree::Group(group) => mentions(group.stream(), wanted),
        _ => false,
    })
}
