use super::*;

fn life() -> Lifecycle {
    Lifecycle::parse(&format!("local.bob.{}", "b".repeat(26))).unwrap()
}

#[test]
fn subjects_read_back_and_foreign_ones_do_not() {
    let space = Space::parse("s-1").unwrap();
    let alice = Principal::parse("local.alice").unwrap();
    let channel = Channel::parse("team.backend").unwrap();
    assert_eq!(space.chat(&alice, &channel), "cotal.s-1.chat.local.alice.team.backend");
    let (from, ch) = space.parse_chat("cotal.s-1.chat.local.alice.team.backend").unwrap();
    assert_eq!((from, ch), (alice.clone(), channel));
    for bad in [
        "cotal.s-1.chat.local.alice",
        "cotal.s-2.chat.local.alice.a",
        "cotal.s-1.chatx.local.alice.a",
        "cotal.s-1.chat.local.ali-ce.a",
        "cotal.s-1.chat.local.alice.a b",
        "cotal.s-11.chat.local.alice.a",
    ] {
        assert!(space.parse_chat(bad).is_none(), "{bad}");
    }
    let dm = space.inst(&life().principal, &alice);
    assert_eq!(space.parse_inst(&dm), Some((life().principal, alice)));
    assert_eq!(space.parse_dinbox(&space.dinbox(&life())), Some(life()));
    assert_eq!(space.parse_dlv(&space.dlv(&life())), Some(life()));
    assert!(space.parse_dlv(&space.dinbox(&life())).is_none());
}

#[test]
fn control_subjects_name_exactly_their_service() {
    let space = Space::parse("s").unwrap();
    let bob = life().principal;
    let request = space.ctl(DELIVERY, &bob);
    assert_eq!(space.parse_ctl(DELIVERY, &request), Some(bob));
    assert!(space.parse_ctl(DELIVERY, &space.ctl(DELIVERY_ADMIN, &life().principal)).is_none());
    assert!(space.parse_ctl(DELIVERY, &format!("{request}.reply.x")).is_none());
}

#[test]
fn replies_lie_below_the_request() {
    let request = "cotal.s.ctl.delivery.local.bob";
    let own = |reply: &str| is_own_reply(request, reply);
    assert!(own(&reply_to(request, &"a".repeat(16))));
    assert!(!own(&reply_to(request, &"a".repeat(15))));
    assert!(!own(&reply_to(request, &"a".repeat(65))));
    assert!(!own(&reply_to(request, "aaaaaaaaaaaaaaaa.b")));
    assert!(!own(&reply_to(request, "aaaaaaaaaaaaaaa*")));
    assert!(!own("cotal.s.ctl.delivery.local.eve.reply.aaaaaaaaaaaaaaaa"));
    assert!(!own("_INBOX.x"));
    assert!(!own(request));
}

#[test]
fn member_keys_read_back() {
    let channel = Channel::parse("team.backend").unwrap();
    let key = member_key(&channel, &life());
    assert_eq!(parse_member_key(&key), Some((channel, life())));
    assert!(parse_member_key("team.backend").is_none());
    assert!(parse_member_key("a/b/local.bob.x").is_none());
}

#[test]
fn spaces_map_foreign_characters() {
    assert_eq!(Space::from_name("my team.x").unwrap().as_str(), "my_team_x");
    assert!(Space::parse("my team").is_err());
    assert!(Space::from_name("").is_err());
}

#[test]
fn a_subscription_reads_the_channels_that_it_matches() {
    let space = Space::parse("s").unwrap();
    for (subject, reads) in [
        ("cotal.s.chat.*.*.team.backend", Some("team.backend")),
        ("cotal.s.chat.*.*.team.>", Some("team.>")),
        ("cotal.s.chat.*.*.*", Some("*")),
        ("cotal.s.chat.local.bob.ops", Some("ops")),
        ("cotal.s.chat.local.>", Some(">")),
        ("cotal.s.chat.>", Some(">")),
        ("cotal.s.>", Some(">")),
        ("cotal.*.chat.*.*.ops", Some("ops")),
        ("*.*.*.*.*.ops", Some("ops")),
        (">", Some(">")),
        ("cotal.t.chat.>", None),
        ("cotal.s.inst.>", None),
        ("cotal.s.chat.*.*", None),
        ("cotal.s.chat", None),
        ("_INBOX_x.>", None),
    ] {
        let read = space.chat_read(subject).map(|pattern| pattern.to_string());
        assert_eq!(read.as_deref(), reads, "{subject}");
    }
}
