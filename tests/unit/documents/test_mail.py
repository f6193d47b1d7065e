"""Messages (EML, MSG): head, text and attachments, whatever program wrote them."""

from __future__ import annotations

import struct
from email.message import EmailMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.documents.formats import parse
from appliance.documents.model import Parsed
from appliance.errors import UnreadableDocument
from tests.unit.documents.compound import Folder, compound


def shown(parsed: Parsed) -> list[str]:
    signs = {"heading": "#", "list_item": "-", "table_row": "|", "code": ">", "paragraph": ""}
    return [f"{signs[b.kind] * max(b.level, 1)} {b.text}".strip() for b in parsed.blocks]


def losses(parsed: Parsed) -> list[str]:
    return [f"{loss.kind}: {loss.detail}" for loss in parsed.losses]


def message(subject: str = "泵的扭矩", body: str = "The torque is 25 Nm.\n") -> EmailMessage:
    made = EmailMessage()
    made["From"] = "Zoë <zoe@example.org>"
    made["To"] = "Service <service@example.org>, b@example.org"
    made["Date"] = "Thu, 3 Dec 2026 08:30:00 +0100"
    made["Subject"] = subject
    made.set_content(body)
    return made


HEAD = (
    "From: Zoë <zoe@example.org>\nTo: Service <service@example.org>, b@example.org\n"
    "Date: Thu, 03 Dec 2026 08:30:00 +0100\nSubject: 泵的扭矩"
)


def test_a_message_with_its_head_as_text() -> None:
    parsed = parse("a.eml", message().as_bytes())
    assert (parsed.title, parsed.media_type) == ("泵的扭矩", "message/rfc822")
    assert shown(parsed) == [HEAD, "The torque is 25 Nm."] and parsed.losses == ()


@pytest.mark.parametrize(
    ("label", "encoding"),
    [("utf-8", "utf-8"), ("gb2312", "gb18030"), ("us-ascii", "gb18030"), ("no-such", "utf-8"), ("utf-16", "utf-8")],
)
@pytest.mark.parametrize("subtype", ["plain", "html"])
def test_bodies_in_encodings_that_are_named_wrongly_or_too_small(label: str, encoding: str, subtype: str) -> None:
    text = "镕化温度为六百六十度，拧紧力矩为一百二十牛米。" * 3
    head = f"Subject: a\r\nContent-Type: text/{subtype}; charset={label}\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
    parsed = parse("a.eml", head.encode() + text.encode(encoding))
    assert (parsed.blocks[-1].text, parsed.encoding) == (text, encoding)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"=?gb2312?B?saO80Q==?=", "保佳"),
        (b"=?utf-8?B?5rO1?=\r\n =?utf-8?Q?_=E6=89?=\r\n =?utf-8?Q?=AD?= end", "泵 扭 end"),  # cut in a character
        ("拧紧力矩为一百二十牛米".encode("gb18030"), "拧紧力矩为一百二十牛米"),
        ("泵的扭矩".encode(), "泵的扭矩"),
        (rb"C:\users =?utf-8?Q?=C3=A9?=", r"C:\users é"),
        (b"=?utf-8?B?x?=", "=?utf-8?B?x?="),
        (b"=?no-such?Q?a=E9b?=", "aéb"),
        (b"two\r\n lines", "two lines"),
    ],
)
def test_lines_of_the_head_in_any_encoding(raw: bytes, expected: str) -> None:
    parsed = parse("a.eml", b"From: a@example.org\r\nSubject: " + raw + b"\r\n\r\nText.\r\n")
    assert parsed.title == expected


def test_of_a_text_in_two_forms_the_one_that_says_more() -> None:
    both = message(body="Part  Torque\nBolt  25 Nm\n")
    both.add_alternative("<table><tr><th>Part<th>Torque<tr><td>Bolt<td>25 Nm</table>", subtype="html")
    assert shown(parse("a.eml", both.as_bytes()))[1:] == ["| Part | Torque", "| Bolt | 25 Nm"]
    poor = message(body="The torque of the cover is 25 Nm.\n")
    poor.add_alternative("<p>See the text.</p>", subtype="html")
    assert shown(parse("a.eml", poor.as_bytes()))[1:] == ["The torque of the cover is 25 Nm."]


def test_attachments_are_sections_and_what_is_not_read_is_named() -> None:
    made = message()
    made.add_attachment(b"Part,Nm\nBolt,120\n", maintype="text", subtype="csv", filename="价格.csv")
    made.add_attachment(b"# Pump\n\n## Stop it\n\nNow.", maintype="application", subtype="x", filename="pump.md")
    made.add_attachment(b"<p>Page</p>", maintype="text", subtype="html", filename="noname")
    made.add_attachment(b"\x00\x01", maintype="application", subtype="octet-stream", filename="tool.exe")
    made.add_attachment(b"%PDF-1.7 broken", maintype="application", subtype="pdf", filename="broken.pdf")
    parsed = parse("a.eml", made.as_bytes())
    assert shown(parsed)[2:] == [
        "# 价格.csv", "| Part | Nm", "| Bolt | 120", "# pump.md: Pump", "## Pump", "### Stop it", "Now.", "# noname",
        "Page",
    ]  # fmt: skip
    assert losses(parsed) == [
        "attachment_unread: tool.exe: files of this kind are not read",
        "attachment_unread: broken.pdf: It is damaged or not a PDF file.",
    ]


def test_a_message_in_a_message_with_attachments_of_its_own() -> None:
    inner = message("Inner", "Inner text.\n")
    inner.add_attachment("Deep text.", filename="deep.txt")
    outer = message("Outer")
    outer.add_attachment(inner)
    assert shown(parse("a.eml", outer.as_bytes()))[2:] == [
        "# Inner", HEAD.replace("泵的扭矩", "Inner"), "Inner text.", "## deep.txt", "Deep text."
    ]  # fmt: skip


def test_a_message_that_is_attached_in_an_encoding_or_as_a_file() -> None:
    import base64

    inner = base64.encodebytes(message("Inner").as_bytes()).decode()
    for kind in ("message/rfc822", "application/octet-stream; name=inner.eml"):
        raw = (
            "Subject: Outer\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nText.\n--b\n"
            f"Content-Type: {kind}\nContent-Transfer-Encoding: base64\n\n{inner}\n--b--\n"
        )
        assert any("25 Nm" in line for line in shown(parse("a.eml", raw.encode()))), kind


def test_pictures_of_the_text_are_counted_and_signatures_are_no_loss() -> None:
    related = MIMEMultipart("related")
    related.attach(MIMEText("<p>See <img src=cid:x alt='the valve'></p>", "html"))
    picture = MIMEText("x")
    picture.replace_header("Content-Type", "image/png; name=x.png")
    picture["Content-ID"] = "<x>"
    related.attach(picture)
    signed = MIMEMultipart("signed")
    signed["Subject"] = "Signed"
    signed.attach(related)
    signature = MIMEText("x")
    signature.replace_header("Content-Type", "application/pgp-signature; name=signature.asc")
    signed.attach(signature)
    parsed = parse("a.eml", signed.as_bytes())
    assert shown(parsed) == ["Subject: Signed", "See the valve"]
    assert {loss.kind for loss in parsed.losses} == {"image_skipped"}


def test_a_report_of_a_message_that_was_not_delivered() -> None:
    raw = (
        b"Subject: Failure\nContent-Type: multipart/report; boundary=b\n\n--b\n\nNot delivered.\n--b\n"
        b"Content-Type: message/delivery-status\n\nReporting-MTA: dns; mx\n\nFinal-Recipient: rfc822; a@b.c\n--b--\n"
    )
    text = "\n".join(shown(parse("a.eml", raw)))
    assert "Not delivered." in text and "Final-Recipient: rfc822; a@b.c" in text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"Dear all,\n\nthis is no message.", "not an email"),
        (b"Subject: a\nContent-Type: multipart/encrypted; boundary=b\n\n--b\n\nx\n--b--\n", "encrypted"),
        (b"Subject: a\nContent-Type: application/pkcs7-mime; name=smime.p7m\n\nx\n", "encrypted or signed"),
        (b"Subject: a\n" + b"Content-Type: message/rfc822\n\n" * 2000 + b"Subject: b\n\nText", "nested too deeply"),
        (b"\x89PNG\r\n\x1a\n", "PNG image"),
    ],
)
def test_what_is_no_readable_message(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument, match=reason):
        parse("a.eml", data)


@settings(max_examples=60)
@given(st.recursive(st.sampled_from(["text", "file"]), lambda inner: st.lists(inner, min_size=1, max_size=3)))
def test_no_text_of_a_tree_of_parts_is_lost(tree: object) -> None:
    counted = 0

    def built(node: object, depth: int) -> MIMEText | MIMEMultipart:
        nonlocal counted
        if isinstance(node, list):
            made = MIMEMultipart("mixed" if depth % 2 else "related")
            for child in node:
                made.attach(built(child, depth + 1))
            return made
        leaf = MIMEText(f"w{counted}w 扭矩", "plain", "utf-8")
        if node == "file":
            leaf["Content-Disposition"] = f"attachment; filename=f{counted}.txt"
        counted += 1
        return leaf

    made = built(tree, 0)
    made["Subject"] = "Tree"
    text = "\n".join(shown(parse("a.eml", made.as_bytes())))
    assert all(f"w{number}w 扭矩" in text for number in range(counted))


# -- MSG ----------------------------------------------------------------------------------------------------------


def properties(header_bytes: int, **numbers: int) -> bytes:
    entries = (
        struct.pack("<HHIQ", 0x40 if pid == "x0039" else 3, int(pid[1:], 16), 6, n) for pid, n in numbers.items()
    )
    return bytes(header_bytes) + b"".join(entries)


def texts(**of: str) -> dict[str, bytes]:
    return {f"__substg1.0_{pid[1:]}001F": text.encode("utf-16-le") for pid, text in of.items()}


def outlook(**more: bytes | Folder) -> bytes:
    attached: Folder = {
        "__properties_version1.0": properties(8, x3705=1),
        **texts(x3707="价格.csv", x370E="text/csv"),
        "__substg1.0_37010102": b"Part,Nm\nBolt,120\n" + b"Nut,25\n" * 1000,
    }
    inner: Folder = {"__properties_version1.0": properties(24), **texts(x0037="Inner", x1000="Inner text.")}
    forwarded: Folder = {
        "__properties_version1.0": properties(8, x3705=5),
        **texts(x3001="Inner"),
        "__substg1.0_3701000D": inner,
    }
    picture: Folder = {
        "__properties_version1.0": properties(8, x3705=1),
        **texts(x3707="logo.png", x370E="image/png", x3712="logo@x"),
        "__substg1.0_37010102": b"\x89PNG",
    }
    linked: Folder = {"__properties_version1.0": properties(8, x3705=4), **texts(x3707="far.docx")}
    root: dict[str, bytes | Folder] = {
        "__properties_version1.0": properties(32, x0039=134250012000000000, x3FFD=936),
        "__substg1.0_001A001E": b"IPM.Note\x00",
        "__substg1.0_0037001E": "泵的扭矩".encode("gbk"),
        **texts(x0C1A="Zoë", x0C1F="/O=EXCHANGE/CN=ZOE", x5D01="zoe@example.org", x0E04="Service; Büro"),
        "__substg1.0_10130102": "<html><p>扭矩为 25 Nm。</p></html>".encode("gbk"),
        "__attach_version1.0_#00000000": attached,
        "__attach_version1.0_#00000001": forwarded,
        "__attach_version1.0_#00000002": picture,
        "__attach_version1.0_#00000003": linked,
    }
    return compound(root | more)


def test_a_message_of_outlook() -> None:
    parsed = parse("a.msg", outlook())
    assert (parsed.title, parsed.media_type) == ("泵的扭矩", "application/vnd.ms-outlook")
    assert shown(parsed)[:5] == [
        "From: Zoë <zoe@example.org>\nTo: Service; Büro\nDate: 2026-06-03 23:00 UTC\nSubject: 泵的扭矩",
        "扭矩为 25 Nm。", "# 价格.csv", "| Part | Nm", "| Bolt | 120",
    ]  # fmt: skip
    assert shown(parsed)[-3:] == ["# Inner", "Subject: Inner", "Inner text."]
    assert losses(parsed) == [
        "image_skipped: 1 images; only their descriptions are kept",
        "attachment_unread: far.docx: the message has only a link to it",
    ]


def test_lines_that_came_over_the_network_say_more() -> None:
    lines = "Received: x\r\nFrom: =?utf-8?Q?Zo=C3=AB?= <z@example.org>\r\nTo: a@example.org\r\n\r\n"
    head = shown(parse("a.msg", outlook(**texts(x007D=lines))))[0]
    assert head.startswith("From: Zoë <z@example.org>\nTo: a@example.org\nDate: 2026")


def test_a_message_is_known_by_its_content() -> None:
    assert parse("a.xls", outlook()).title == "泵的扭矩"
    assert parse("a.msg", message().as_bytes()).title == "泵的扭矩"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (outlook()[:3000], "damaged"),
        (compound({"Contents": b"x" * 5000}), "not a message of Outlook"),
        (outlook(**{"__substg1.0_001A001E": b"IPM.Note.SMIME\x00"}), "encrypted or signed"),
        (b"Just text.", "not an email"),
    ],
)
def test_what_is_no_readable_message_of_outlook(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument, match=reason):
        parse("a.msg", data)
