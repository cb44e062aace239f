//! Kinds of fields, and the hash of a static one.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, GenericArgument, PathArguments, Result, Type};

use crate::generics::{Parameters, REFERENCE};

/// The part of a field in the tree.
pub enum Kind {
    /// It has leaves.
    Subtree,
    /// A `PhantomData` that mentions a parameter: nothing to map or hash.
    Phantom,
    /// It belongs to the structure.
    Static,
}

/// The part of a field of type `ty`.
pub fn kind(ty: &Type, parameters: &mut Parameters) -> Result<Kind> {
    let tokens = ty.to_token_stream();
    if !parameters.has_leaves(tokens.clone()) {
        parameters.note_static(&tokens);
        return Ok(Kind::Static);
    }
    if generic(ty).is_some_and(|(name, _)| name == "PhantomData") {
        return Ok(Kind::Phantom);
    }
    if let Type::Reference(_) = ty {
        return Err(Error::new_spanned(ty, REFERENCE));
    }
    match reference(tokens) {
        Some(token) => Err(Error::new_spanned(token, REFERENCE)),
        None => Ok(Kind::Subtree),
    }
}

/// The first `&` among the tokens.
fn reference(tokens: TokenStream) -> Option<TokenTree> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Punct(ref punct) if punct.as_char() == '&' => Some(token),
        TokenTree::Group(group) => reference(group.stream()),
        _ => None,
    })
}

/// Statements that hash the static field to which `value`, a reference, is bound.
pub fn hash(ty: &Type, value: &Ident) -> TokenStream {
    hash_at(ty, value, 0)
}

/// Floats have no `Hash`, so containers of them are taken apart down to the bits.
fn hash_at(ty: &Type, value: &Ident, depth: usize) -> TokenStream {
    let item = format_ident!("__item_{depth}");
    if !has_float(ty) {
        return quote_spanned!(ty.span()=> ::podracer::tree::hash_static(#value, __state););
    }
    match ty {
        Type::Group(group) => hash_at(&group.elem, value, depth),
        Type::Paren(paren) => hash_at(&paren.elem, value, depth),
        Type::Array(array) => {
            let inner = hash_at(&array.elem, &item, depth + 1);
            quote!(for #item in #value.iter() { #inner })
        }
        Type::Tuple(tuple) => {
            let items: Vec<_> =
                (0..tuple.elems.len()).map(|i| format_ident!("__item_{depth}_{i}")).collect();
            let inner =
                tuple.elems.iter().zip(&items).map(|(ty, item)| hash_at(ty, item, depth + 1));
            quote!({ let (#(#items,)*) = #value; #(#inner)* })
        }
        _ => match generic(ty) {
            Some((name, Some(argument))) => {
                let inner = hash_at(argument, &item, depth + 1);
                match name.to_string().as_str() {
                    "Option" => quote! {
                        ::podracer::tree::hash_static(&#value.is_some(), __state);
                        if let ::core::option::Option::Some(#item) = #value { #inner }
                    },
                    "Vec" => quote! {
                        ::podracer::tree::hash_static(&#value.len(), __state);
                        for #item in #value.iter() { #inner }
                    },
                    _ => quote!({ let #item = &**#value; #inner }), // Box
                }
            }
            _ => quote!(::podracer::tree::hash_static(&#value.to_bits(), __state);),
        },
    }
}

/// Returns true if `ty` is a float, or holds one in a container that `hash_at` takes apart.
fn has_float(ty: &Type) -> bool {
    match ty {
        Type::Group(group) => has_float(&group.elem),
        Type::Paren(paren) => has_float(&paren.elem),
        Type::Array(array) => has_float(&array.elem),
        Type::Tuple(tuple) => tuple.elems.iter().any(has_float),
        _ => match generic(ty) {
            Some((name, None)) => name == "f32" || name == "f64",
            Some((name, Some(argument))) => {
                ["Option", "Vec", "Box"].iter().any(|known| name == known) && has_float(argument)
            }
            None => false,
        },
    }
}

/// The last name of a path type, and its only type argument if there is exactly one.
fn generic(ty: &Type) -> Option<(&Ident, Option<&Type>)> {
    let Type::Path(path) = ty else { return None };
    let segment = path.path.segments.last()?;
    match &segment.arguments {
        PathArguments::None => Some((&segment.ident, None)),
        PathArguments::AngleBracketed(arguments) => match arguments.args.first()? {
            GenericArgument::Type(argument) if arguments.args.len() == 1 => {
                Some((&segment.ident, Some(argument)))
            }
            _ => None,
        },
        _ => None,
    }
}
