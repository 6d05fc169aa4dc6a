"""The page in headless Chromium: by mouse, by keyboard alone, on narrow and wide screens."""

import json
import shutil

import pytest
from browser import Page
from served import Limits, running
from toy_videos import frames_of, write_video

NUM_SYSTEMS = 6


@pytest.fixture
def page(chromium_port, client):
    """The page of the server, wide; at the end, its console must have no error."""
    page = Page(chromium_port)
    page.open(f"http://127.0.0.1:{client.port}/")
    page.wait_for(f"document.querySelectorAll('section').length === {NUM_SYSTEMS}")
    yield page
    problems = page.problems
    page.close()
    assert problems == []


def text_of(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)}).innerText")


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_its_screen(page, client, images, width):
    page.open(f"http://127.0.0.1:{client.port}/", width)
    page.wait_for(f"document.querySelectorAll('section').length === {NUM_SYSTEMS}")
    page.choose_files(".albums input", *images)
    page.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.choose_files(".captions input", images[0])
    page.wait_for("document.querySelector('.captions .score')")
    assert page.run("document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('input, button, textarea, select, img')].filter((part) => "
    cut += "part.getBoundingClientRect().right > innerWidth).length"
    assert page.run(cut) == 0


def test_every_field_and_button_has_a_name(page, images):
    page.choose_files(".albums input", *images)
    fields = "[...document.querySelectorAll('input, textarea, select')]"
    assert page.run(f"{fields}.length") > 30
    assert page.run(f"{fields}.filter((field) => !field.labels.length).length") == 0
    buttons = "[...document.querySelectorAll('button')]"
    names = f"{buttons}.map((button) => button.ariaLabel || button.innerText || button.textContent)"
    names = page.run(names)
    assert all(any(letter.isalpha() for letter in name) for name in names)
    assert "Move image1.png, image 2 earlier" in names
    assert page.run("[...document.images].every((image) => image.alt)")
    assert page.run("document.documentElement.lang") == "en"


def test_dropped_images_get_captions(page, client, images):
    page.drop_files(".captions .drop", *images[:2])
    page.wait_for("document.querySelectorAll('.captions .score').length === 2")
    _, record = client.upload("/api/caption", ("image", images[1].read_bytes(), "a.png"))
    shown = page.run("[...document.querySelectorAll('.captions li')].map((li) => li.innerText)")
    (line,) = (text for text in shown if images[1].name in text)
    assert line.split("\n\n")[1:] == [record["hypothesis"], f"score {record['score']}"]
    assert text_of(page, "#status").startswith("Caption of image")


def test_a_text_file_called_jpg_is_a_sentence(page, tmp_path):
    (tmp_path / "my cat.jpg").write_text("a text\n")
    page.drop_files(".captions .drop", tmp_path / "my cat.jpg")
    page.wait_for("document.querySelector('.captions li .problem')")
    message = "my cat.jpg is not an image, or its format is not supported."
    assert text_of(page, ".captions li .problem") == message
    # the browser's own note of the answer
    (note,) = page.problems
    assert "status of 422" in note
    page.problems.clear()


def test_a_broken_image_of_a_story_is_named_by_its_place(page, images, tmp_path):
    (tmp_path / "cat.jpg").write_text("a text\n")
    page.choose_files(".albums input", *images[:4], tmp_path / "cat.jpg")
    page.run("document.querySelector('.albums form').requestSubmit()")
    page.wait_for("document.querySelector('.albums form > .problem').textContent")
    message = "Image 5 is not an image, or its format is not supported."
    assert text_of(page, ".albums form > .problem") == message
    page.problems.clear()


def test_fifty_images_side_by_side_in_the_order_of_choosing(page, images, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(50)]
    for number, path in enumerate(paths):
        shutil.copy(images[number % len(images)], path)
    page.choose_files(".captions input", *paths[:48])
    assert page.run("scrollY") == 0
    page.choose_files(".captions input", *paths[48:])
    assert page.run("scrollY") > 0  # to the new images
    names = "[...document.querySelectorAll('.captions .results .name')].map((x) => x.innerText)"
    assert page.run(names) == [path.name for path in paths]
    page.wait_for("document.querySelectorAll('.captions .score').length === 50", 60)
    assert page.run("document.querySelectorAll('.problem:not(:empty)').length") == 0


def test_five_images_are_put_in_order_and_told(page, images):
    page.drop_files(".albums .drop", *images[:3])
    page.run("document.querySelector('.albums form').requestSubmit()")
    page.wait_for("document.querySelector('.albums form > .problem').textContent")
    message = "A story has 5 images, but there are 3."
    assert text_of(page, ".albums form > .problem") == message
    page.drop_files(".albums .drop", *images[3:], images[0])
    page.wait_for("document.querySelectorAll('.slots li').length === 5")
    assert text_of(page, ".albums form > .problem") == "A story has 5 images; 1 was left out."
    page.run("document.querySelector('.slots li:nth-child(2) .earlier').click()")
    order = "[...document.querySelectorAll('.slots .name')].map((name) => name.innerText)"
    names = [image.name for image in images]
    names[:2] = names[1], names[0]
    assert page.run(order) == [f"{i}. {name}" for i, name in enumerate(names, start=1)]
    # dragged by the mouse, the first image takes the place of the third
    place = "document.querySelector('.slots li:nth-child({})').dispatchEvent(new DragEvent('{}', "
    place += "{{bubbles: true, cancelable: true, dataTransfer: new DataTransfer()}}))"
    for number, kind in ((1, "dragstart"), (3, "dragover"), (3, "drop")):
        page.run(place.format(number, kind))
    names[:3] = names[1], names[2], names[0]
    assert page.run(order) == [f"{i}. {name}" for i, name in enumerate(names, start=1)]
    page.run("document.querySelector('.albums [name=max_words_per_sentence]').value = 6")
    page.run("document.querySelector('.albums form').requestSubmit()")
    page.wait_for("document.querySelectorAll('.albums .strip li').length === 5")
    words = page.run("[...document.querySelectorAll('.strip p')].map((p) => p.innerText)")
    assert all(1 <= len(sentence.split()) <= 6 for sentence in words)


def focus_by_tab(page, condition, *, shift=False):
    """Press Tab until an element that fulfils the condition has the focus."""
    for _ in range(80):
        page.press("Tab", shift=shift)
        if page.run(f"((part) => {condition})(document.activeElement)"):
            return
    raise AssertionError(f"Tab never reaches an element with {condition}")


def test_the_keyboard_is_enough(page, images):
    focus_by_tab(page, "part.closest('section.prompts') && part.name === 'prompt'")
    page.type("You find a dragon .")
    focus_by_tab(page, "part.type === 'submit'")
    page.press("Enter")
    page.wait_for("document.querySelector('.prompts .score')")
    assert "Words that the model does not know: dragon" in text_of(page, ".prompts .results")
    # the dialog of files is the browser's own, and opens by Enter or a space
    page.choose_files(".albums input", *images)
    page.run("document.querySelector('.albums input').focus()")
    focus_by_tab(page, "part.className === 'later'")
    page.press(" ")
    page.press(" ")
    names = page.run("[...document.querySelectorAll('.slots .name')].map((name) => name.innerText)")
    assert names[2] == f"3. {images[0].name}"
    assert page.run("document.activeElement.ariaLabel") == f"Move {images[0].name}, image 3 later"
    assert text_of(page, "#status") == "Moved to place 3."


def test_a_story_can_be_watched_and_stopped(page, systems, monkeypatch):
    import time

    story = next(system for system in systems if system.name == "story")
    infer = story.model.task.inference_step

    def infer_slowly(generator, *arguments, **options):
        step = generator.search.step
        monkeypatch.setattr(generator.search, "step", lambda *x: time.sleep(0.1) or step(*x))
        return infer(generator, *arguments, **options)

    monkeypatch.setattr(story.model.task, "inference_step", infer_slowly)
    page.run("document.querySelector('.prompts textarea').value = 'a door'")
    page.run("document.querySelector('.prompts form').requestSubmit()")
    text = "document.querySelector('.prompts .text').textContent"
    page.wait_for(f"document.querySelector('.prompts .text') && {text}.split(' ').length > 3")
    first = page.run(text)
    page.wait_for(f"{text}.length > {len(first)}")
    page.run("document.querySelector('.prompts .stop').click()")
    page.wait_for("document.querySelector('#status').innerText === 'Stopped.'")
    assert page.run("document.querySelector('.prompts [aria-busy]')") is None
    assert page.run(text).startswith(first)


def test_a_video_and_its_transcript_are_dropped_together(page, tmp_path):
    video = write_video(tmp_path / "video.mp4", frames_of(11, 40, 50))
    (tmp_path / "a.srt").write_text("1\n00:00:01,000 --> 00:00:02,500\nThe dog runs\n")
    page.drop_files(".summaries .drop", video, tmp_path / "a.srt")
    page.run("document.querySelector('.summaries form').requestSubmit()")
    page.wait_for("document.querySelector('.summaries .score')")
    assert "3 tokens of transcript, 2 frames" in text_of(page, ".summaries .results")


def test_a_folder_is_searched_by_a_sentence_and_by_an_image(page, images):
    focus_by_tab(page, "part.name === 'query'")
    page.type("a dog and a zebra")
    page.press("Enter")
    page.wait_for("document.querySelectorAll('.search .strip li').length === 5")
    assert "does not know: and, zebra" in text_of(page, ".search .results").replace("\n", " ")
    page.wait_for("[...document.querySelectorAll('.search img')].every((x) => x.naturalWidth)")
    page.drop_files(".search .drop", images[2])
    page.run("document.querySelector('.search form').requestSubmit()")
    page.wait_for("document.querySelectorAll('.search .strip').length === 2")
    assert text_of(page, ".search .strip .name") == images[2].name


def test_the_page_asks_for_the_token(chromium_port, systems):
    token = "correct-horse-battery"
    with running(systems, Limits(), token=token) as client:
        page = Page(chromium_port)
        page.open(f"http://127.0.0.1:{client.port}/")
        page.wait_for("!document.querySelector('#token-form').hidden")
        for word, message in (("wrong", "The token is missing or wrong."), (token, "")):
            assert page.run("document.activeElement.id") == "token"
            page.run("document.activeElement.select()")
            page.type(word)
            page.press("Enter")
            page.wait_for(
                f"document.querySelector('#token-form .problem').innerText === '{message}' || "
                "document.querySelector('#token-form').hidden"
            )
        page.wait_for(f"document.querySelectorAll('section').length === {NUM_SYSTEMS}")
        # the browser's own notes of the answers
        assert all("status of 401" in note for note in page.problems)
        page.close()
