"""Words of generated prompts and stories.

A *fact* of a prompt is the value of one of five kinds. The prompt names the value by the first word
of its line; the story takes it up by the other four words, its *traces*. No word belongs to two
values, so a trace tells which value is meant. Fillers take their words from ``CLASSES``.
"""

KINDS = ("hero", "place", "object", "goal", "tone")

_VALUES = {
    "hero": """
        baker: flour dough yeast crumbs
        sailor: sails anchors knots tides
        farmer: barley ploughs hay harvests
        teacher: chalk lessons pupils homework
        surgeon: scalpels bandages stitches wards
        thief: lockpicks loot alibis disguises
        painter: canvas brushes turpentine pigments
        soldier: medals trenches boots rifles
        pilot: cockpits runways propellers altitude
        judge: verdicts robes gavels laws
        barber: razors scissors lather combs
        tailor: needles thimbles hems fabric
        miner: pickaxes coal shafts lanterns
        beekeeper: hives honey smoke swarms
        astronomer: comets telescopes eclipses galaxies
        plumber: pipes leaks valves drains
        chemist: acids flasks powders formulas
        dancer: slippers pirouettes rehearsals mirrors
        butcher: sausages cleavers ham bacon
        fisher: nets hooks trout bait
        carpenter: planks nails sawdust hammers
        poet: verses rhymes stanzas metaphors
        gardener: tulips weeds compost seedlings
        magician: tricks rabbits wands illusions
    """,
    "place": """
        lighthouse: beacon foghorn cliff reef
        library: bookshelf catalogue archive lectern
        castle: drawbridge moat dungeon turret
        hospital: corridor stretcher clinic ambulance
        desert: dune cactus oasis mirage
        forest: oak clearing ferns thicket
        station: platform rails locomotive timetable
        market: stalls bargain awning crates
        school: classroom blackboard playground canteen
        prison: cell warden bars courtyard
        island: lagoon palms beach canoe
        church: steeple altar pews organ
        theatre: stage curtain balcony orchestra
        museum: gallery statue fossil exhibit
        factory: assembly chimney conveyor furnace
        harbour: pier trawler dock crane
        mountain: summit glacier ridge avalanche
        kitchen: stove pantry kettle sink
        circus: trapeze clown tent acrobat
        village: windmill pond smithy haystack
        casino: roulette dealer jackpot chips
        airport: terminal luggage customs hangar
        swamp: mud reeds bog mosquitoes
        zoo: cages penguin elephant aquarium
    """,
    "object": """
        clock: pendulum dial cogs chime
        sword: blade hilt scabbard steel
        letter: envelope stamp signature ink
        map: compass legend scale route
        violin: strings bow rosin melody
        camera: lens shutter film flash
        crown: jewels rubies velvet gold
        umbrella: canopy tassel ferrule drizzle
        radio: antenna static frequency broadcast
        bicycle: pedals spokes saddle tyres
        book: chapter pages spine margin
        robot: circuits sensors gears battery
        mask: feathers ribbon eyeholes glitter
        coin: silver mint engraving purse
        lamp: wick shade bulb glow
        chest: hinges padlock lid treasure
        ring: diamond finger band emerald
        doll: porcelain buttons dress ringlets
        potion: vial bubbles cork elixir
        drum: drumsticks rhythm beat leather
        bell: clapper bronze toll rope
        ladder: rungs splinters attic rooftop
        typewriter: keys carriage paper manuscript
        kite: tail gusts spool bamboo
    """,
    "goal": """
        escape: tunnel guards fence freedom
        win: race trophy finish rivals
        marry: bride wedding vows bouquet
        forgive: apology quarrel pardon grudge
        hide: shadows cellar whisper camouflage
        learn: alphabet tutor practice exams
        sing: chorus microphone lullaby concert
        avenge: insult feud duel enemy
        heal: fever medicine cure wound
        travel: passport journey suitcase voyage
        build: foundation bricks blueprint mortar
        remember: childhood diary scrapbook memory
        govern: election parliament ballot senate
        sleep: pillow blanket bedtime snoring
        cook: recipe soup spices stew
        pay: debt wages banker loan
        rescue: hostage siren lifeboat firemen
        spy: codes agents binoculars secrets
        trade: contract merchants cargo profit
        repair: wrench screws glue toolbox
    """,
    "tone": """
        gloomy: bleak dreary mournful sombre
        funny: hilarious silly absurd comical
        scary: creepy horrid eerie ghastly
        romantic: tender loving passionate dreamy
        calm: peaceful serene quiet gentle
        angry: furious bitter hateful raging
        mysterious: strange hidden secret puzzling
        proud: noble glorious triumphant majestic
        hopeful: bright promising cheerful rosy
        lonely: empty forsaken deserted solitary
        hurried: frantic hectic breathless urgent
        ancient: old timeworn dusty forgotten
    """,
}

# words of fillers, by the name of a slot in a template
_CLASSES = {
    "animal": """dog cat horse goat sheep cow donkey goose duck hen owl crow fox wolf bear squirrel
        hedgehog mouse rat frog snake lizard turtle spider parrot pigeon swan badger otter camel""",
    "colour": """red blue green yellow purple orange brown black white pink turquoise beige crimson
        violet olive ivory""",
    "food": """bread cheese apples pears plums rice noodles beans lentils carrots onions potatoes
        pancakes waffles yoghurt pudding cake biscuits chocolate walnuts almonds raisins grapes
        cherries melon pumpkin mushrooms salad eggs porridge""",
    "drink": "tea coffee milk lemonade cider cocoa water juice wine beer buttermilk punch",
    "furniture": """table chair sofa wardrobe cupboard carpet bench desk stool cradle drawer
        fireplace doorway staircase window bathtub bed armchair cabinet shelf""",
    "weekday": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": """January February March April May June July August September October November
        December""",
    "weather": """rainy windy stormy foggy sunny cloudy snowy icy misty humid chilly warm hot cold
        freezing mild""",
    "feeling": """tired hungry sleepy bored thirsty curious nervous relieved confused dizzy pleased
        grateful jealous ashamed homesick restless cautious stubborn worried content""",
    "number": """two three four five six seven eight nine ten eleven twelve thirteen fourteen
        fifteen sixteen seventeen eighteen nineteen twenty thirty""",
    "clothing": """hat scarf coat sweater jacket glove sock shoe belt tie skirt shirt vest apron cap
        cloak sandal kimono poncho uniform""",
    "season": "morning afternoon winter summer spring autumn week month year weekend",
    "city": """Paris London Rome Berlin Madrid Lisbon Vienna Prague Athens Cairo Tokyo Lima Oslo
        Dublin Warsaw Boston Chicago Toronto Sydney Mumbai Delhi Nairobi Lagos Havana Quito Seoul
        Manila Jakarta Moscow Helsinki""",
    "did": """laughed coughed sneezed shouted whistled waited yawned smiled nodded shrugged sighed
        jumped danced wept hummed mumbled knocked stumbled paused blinked giggled groaned hurried
        kneeled listened murmured prayed rested shivered stared""",
    "how": """loudly softly suddenly happily sadly nervously quietly politely carefully eagerly
        patiently lazily rudely gladly briefly firmly clumsily bravely awkwardly calmly""",
    # the protagonist's name, and a friend's; neither is in the prompt
    "name": """Ada Bela Cora Dora Edda Fritz Greta Hugo Ida Jonas Karl Lena Mara Nils Olga Petra
        Quinn Ruth Sven Tilda Ulla Vera Wanda Xenia Yara Zeno Anton Bruno Clara Denis Elsa Felix
        Gerda Henri Irma Julia Kurt Luisa Milan Nora Oscar Paula Rita Simon Tessa Uwe Viktor
        Walter""",
    "friend": """Abdul Bashir Chidi Diego Emeka Farid Gopal Hiro Ivan Jorge Kofi Luca Mateo Nadir
        Omar Pedro Rahul Sanjay Tariq Umar Vikram Wei Yusuf Zahid Aisha Bianca Carmen Deepa Elena
        Fatima Gita Hana Ines Jamila Kavya Leila Mina Noor Oksana Priya Rosa Sana Tamara Usha
        Valeria Yasmin Zainab Amara""",
}


def _read_values(lines: str) -> dict[str, tuple[str, ...]]:
    pairs = (line.split(":") for line in lines.split("\n") if line.strip())
    return {name.strip(): tuple(traces.split()) for name, traces in pairs}


# kind -> value as the prompt names it -> the traces by which a story takes it up
VALUES = {kind: _read_values(lines) for kind, lines in _VALUES.items()}
# trace -> its kind and value
VALUE_BY_TRACE = {
    trace: (kind, value)
    for kind in KINDS
    for value, traces in VALUES[kind].items()
    for trace in traces
}
# value -> its kind
KIND_BY_VALUE = {value: kind for kind in KINDS for value in VALUES[kind]}

CLASSES = {name: tuple(words.split()) for name, words in _CLASSES.items()}
# A filler with a decoy names the trace of any value, whatever the prompt says.
CLASSES["decoy"] = tuple(VALUE_BY_TRACE)
