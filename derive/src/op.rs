//! `#[op]`, for functions that bind operations.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Ident, LitStr, Result, Token};

/// Arguments of the attribute: `"name"`, `at_line`, or both.
pub(crate) struct Arguments {
    name: Option<LitStr>,
    at_line: bool,
}

impl Parse for Arguments {
    fn parse(input: ParseStream) -> Result<Self> {
        let name = if input.peek(LitStr) { Some(input.parse()?) } else { None };
        if name.is_some() && !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
        let at_line = !input.is_empty();
        if at_line {
            let word: Ident = input.parse()?;
            if word != "at_line" {
                return Err(Error::new(word.span(), "expected a string literal or `at_line`"));
            }
        }
        Ok(Arguments { name, at_line })
    }
}

/// Adds `#[track_caller]` to the function `item`, and scopes to the beginning of its body. Tokens of
/// the body are passed on unread, so that they keep their spans and cost nothing.
pub(crate) fn expand(arguments: Arguments, item: TokenStream) -> Result<TokenStream> {
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();
    let not_a_function = || Error::new(Span::call_site(), "`#[op]` needs a function with a body");
    let name = function_name(&tokens).ok_or_else(not_a_function)?;
    let body = match tokens.pop() {
        Some(TokenTree::Group(body)) if body.delimiter() == Delimiter::Brace => body,
        _ => return Err(not_a_function()),
    };

    let name = arguments.name.unwrap_or(name);
    let at = Span::mixed_site();
    let scope = quote_spanned!(at=> let _scope = crate::trace::tensor::function(#name););
    let line = arguments
        .at_line
        .then(|| quote_spanned!(at=> let _line = crate::trace::tensor::at_callers_line();));
    let statements = body.stream();
    let mut with_scope = Group::new(Delimiter::Brace, quote!(#scope #line #statements));
    with_scope.set_span(body.span());
    Ok(quote!(#[track_caller] #(#tokens)* #with_scope))
}

/// The word after `fn`.
fn function_name(item: &[TokenTree]) -> Option<LitStr> {
    item.windows(2).find_map(|pair| match pair {
        [TokenTree::Ident(word), TokenTree::Ident(name)] if word == "fn" => {
            Some(LitStr::new(&name.unraw().to_string(), name.span()))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expansion(arguments: &str, item: &str) -> Result<String> {
        expand(syn::parse_str(arguments)?, item.parse()?).map(|tokens| tokens.to_string())
    }

    fn expansion_is(arguments: &str, item: &str, expected: &str) {
        let expected: TokenStream = expected.parse().unwrap();
        assert_eq!(expansion(arguments, item).unwrap(), expected.to_string());
    }

    #[test]
    fn a_function_gets_a_scope_of_its_name() {
        let expected = "#[track_caller] pub fn r#where<F: Fn(u8) -> [u8; 2]>(f: F) -> u8 \
                        { let _scope = crate::trace::tensor::function(\"where\"); f(0); { 1 } }";
        let item = "pub fn r#where<F: Fn(u8) -> [u8; 2]>(f: F) -> u8 { f(0); { 1 } }";
        expansion_is("", item, expected);
    }

    #[test]
    fn arguments_change_the_name_and_set_the_line() {
        let expected = "#[track_caller] fn init() { \
                        let _scope = crate::trace::tensor::function(\"Dense\"); \
                        let _line = crate::trace::tensor::at_callers_line(); }";
        expansion_is("\"Dense\", at_line", "fn init() {}", expected);
    }

    #[test]
    fn other_items_and_arguments_are_errors() {
        for item in
            ["struct A { x: u8 }", "fn f();", "const F: fn(u8) = g;", "impl A { fn f() {} }"]
        {
            let message = expansion("", item).unwrap_err().to_string();
            assert_eq!(message, "`#[op]` needs a function with a body", "{item}");
        }
        for arguments in ["name", "1", "\"a\" at_line", "\"a\", \"b\"", "at_line, at_line"] {
            assert!(expansion(arguments, "fn f() {}").is_err(), "{arguments}");
        }
    }
}
