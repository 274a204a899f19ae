"""Tables of readings that the dictionaries of pypinyin and jieba lack, as characters and pinyin.

Pinyin is written with v for ü and with the tone at its end; 5 is the neutral tone. `readings` works out the tones of 一
and 不 and of several third tones in a row. A third tone is changed here only before a syllable that has lost its tone.
"""

from __future__ import annotations

# Latin letters by their usual Mandarin names, or by the nearest syllables in the table of phonemes
# fmt: off
LETTERS = {
    "A": "ei1", "B": "bi4", "C": "xi1", "D": "di4", "E": "yi4", "F": "ai2 fu5", "G": "ji4", "H": "ei2 chi5",
    "I": "ai4", "J": "zhei4", "K": "kei4", "L": "ai2 lou5", "M": "ai2 mu5", "N": "en1", "O": "ou1", "P": "pi4",
    "Q": "kiu1", "R": "a4 er5", "S": "ai2 si5", "T": "ti4", "U": "you1", "V": "wei4", "W": "da2 bu5 liu5",
    "X": "ai2 ke5 si5", "Y": "wai4", "Z": "zei4",
}
# fmt: on

# one-character words whose first reading in pypinyin is not the usual one
# fmt: off
SINGLE = {
    "长": "chang2", "得": "de5", "嗯": "en4", "欸": "ei4", "诶": "ei4", "喽": "lou5", "咯": "lo5",
    "谁": "shei2", "哦": "o4", "血": "xie3", "剥": "bao1", "似": "si4", "削": "xiao1", "嚼": "jiao2",
}
# fmt: on

# phrases that pypinyin lacks or reads differently
# fmt: off
READINGS = {
    "哪里": "na2 li5", "小姐": "xiao2 jie5", "等等": "deng2 deng5", "哪儿": "na3 er5", "这儿": "zhe4 er5",
    "那儿": "na4 er5", "晌午": "shang2 wu5", "老鼠": "lao2 shu5", "长高": "zhang3 gao1", "长得": "zhang3 de5",
    "长满": "zhang3 man3", "还款": "huan2 kuan3", "都会": "dou1 hui4",
    "数一数": "shu3 yi1 shu3", "变为": "bian4 wei2", "视为": "shi4 wei2", "名为": "ming2 wei2", "得很": "de5 hen3",
    "勉强": "mian2 qiang3", "薄荷": "bo4 he5", "提防": "di1 fang5", "了不起": "liao3 bu5 qi3",
    "受不了": "shou4 bu5 liao3", "大夫": "dai4 fu5", "谢谢": "xie4 xie5", "爸爸": "ba4 ba5", "妈妈": "ma1 ma5",
    "哥哥": "ge1 ge5", "姐姐": "jie3 jie5", "妹妹": "mei4 mei5", "爷爷": "ye2 ye5", "奶奶": "nai3 nai5",
    "叔叔": "shu1 shu5", "舅舅": "jiu4 jiu5", "姑姑": "gu1 gu5", "公公": "gong1 gong5", "宝宝": "bao3 bao5",
    "太太": "tai4 tai5", "星星": "xing1 xing5", "猩猩": "xing1 xing5", "蝈蝈": "guo1 guo5", "嫂嫂": "sao3 sao5",
    "慢慢儿": "man4 man1 er5", "好好儿": "hao3 hao1 er5", "远远儿": "yuan3 yuan1 er5", "早早儿": "zao3 zao1 er5",
    "琢磨": "zuo2 mo5",
}
# fmt: on

# readings by context: (pattern of the text before, pattern of the text after, reading)
CONTEXT = {
    "得": [
        ("[我你他她它们]", "[了到出]", "de2"),
        ("[我你他她它们咱还都就总必也可非]", "(?![很太多少真不])[一-龥]", "dei3"),
        ("^", "了", "de2"),
        ("[跑说走做写吃长看玩唱来过]", "[很快好慢多高远太真]", "de5"),
    ],
    "地": [("[一-龥][^块片亩的在种耕租买卖有这那]", "(?![上下里面区方块])[一-龥]", "de5")],
    "着": [("[睡找猜点逮摸]不?", "了?$|了", "zhao2")],
    "了": [("[吃受走去做忘免好错少来到办干跑用管]不|[吃走做忘免办]得", "", "liao3")],
    "还": [("[归偿退返要没已得]", "[给钱书债款贷清你我他她了]", "huan2"), ("", "[给钱书债款贷清]", "huan2")],
    "只": [("[一二两三四五六七八九十百千万几半多这那每]", "", "zhi1")],
    "为": [
        ("[称分名命视变改译列选评度高宽积量价数率额温速]", "", "wei2"),
        ("", "[零一二三四五六七八九十两百]", "wei2"),
    ],
    "长": [
        ("[很太多好最更么不]", "(?![大高出得了])", "chang2"),
        ("[又也他她它们]|孩子|个子|头发|胡子|树", "[大高得了出满成胖]", "zhang3"),
    ],
    "行": [("[一二两三四五六七八九十几每这那第单双]", "(?![了吗吧不人])", "hang2")],
    "一行": [("", "[字诗代文泪]", "yi1 hang2")],
    "教": [("", "[我你他她它咱谁书课孩给了过着得]|学生|英语|数学|语文", "jiao1")],
    "种": [("(?:^|[^一二两三四五六七八九十几多各这那每])", "[了着一几两三]?[棵片树花地菜草粮田瓜豆]", "zhong4")],
    "干": [("[晒擦吹烘晾风太很]", "", "gan1")],
    "数": [("", "[一了]?[数下]|到[零一二三四五六七八九十百几]", "shu3")],
    "子": [
        ("[孔孟老庄荀墨韩列曾朱孙原电分质中粒离量光男女弟王公君天太父母亲才学因精卵孝游赤]", "", "zi3"),
        ("", "[女弟孙夜宫]", "zi3"),
    ],
    "重": [("", "[新复建做来写读说装修返]", "chong2")],
    "背": [("", "[着起上了]?[书包]", "bei1")],
    "假": [("[放请休寒暑病事婚产天年月周]", "", "jia4")],
    "倒": [("", "[水茶酒车计影立]", "dao4")],
}

# words whose second syllable has the neutral tone, whatever dictionaries say
NEUTRAL = frozenset(
    """
    朋友 东西 明白 知道 喜欢 漂亮 衣服 先生 姑娘 清楚 学生 认识 告诉 时候 事情 关系 消息 休息 地方 眼睛 耳朵 葡萄
    豆腐 太阳 月亮 窗户 头发 客气 麻烦 聪明 舒服 热闹 故事 护士 丈夫 妻子 亲戚 生意 行李 力气 脾气 名字 点心 脑袋
    指甲 胳膊 屁股 骆驼 狐狸 苍蝇 蘑菇 石榴 玻璃 棉花 高粱 庄稼 粮食 砖头 风筝 灯笼 扫帚 抽屉 包袱 行当 本事 买卖
    打听 打算 打扮 打量 收拾 商量 招呼 称呼 答应 应酬 张罗 糊涂 老实 厚道 机灵 结实 精神 干净 利索 凉快 亮堂 宽敞
    新鲜 痛快 勤快 爽快 委屈 可怜 稀罕 含糊 马虎 踏实 体面 厉害 自在 别扭 规矩 主意 毛病 疟疾 嘴巴 下巴 巴掌 眉毛
    云彩 月饼 烧饼 烟筒 芝麻 甘蔗 核桃 黄瓜 蚂蚱 刺猬 牲口 畜牲 媳妇 闺女 寡妇 女婿 师傅 师父 徒弟 和尚 尼姑 秀才
    状元 财主 少爷 老爷 奴才 裁缝 木匠 铁匠 石匠 皮匠 队伍 衙门 首饰 胭脂 算盘 簸箕 笤帚 帐篷 门道 窝囊 吓唬 吆喝
    嘱咐 吩咐 念叨 唠叨 叨唠 嘀咕 咳嗽 溜达 动弹 见识 学问 福气 运气 志气 和气 小气 阔气 秀气 牛气 欺负 招牌 交情
    冤家 晚上 早上 身上 路上 头上 脸上 桌上 地上 世上 床上 街上 墙上 家里 心里 屋里 手里 夜里 城里 村里 院里 嘴里
    眼里 这里 那里 葫芦 玫瑰 位置 部分 打发 打点 苗条 篱笆 妥当 稳当 相声 心思 烟囱 养活 冤枉 在乎 扎实 眨巴 栅栏
    转悠 祖宗 疏忽 思量 岁数 特务 挑剔 跳蚤 挖苦 娃娃 喇叭 牢骚 累赘 琉璃 麻利 码头 迷糊 眯缝 名堂 模糊 难为 能耐
    娘家 盘算 婆家 铺盖
    """.split()
)

# verbs whose second syllable has the neutral tone when they are doubled
REDUPLICATED = frozenset(
    "看想试听说走坐等聊谈玩问找写读学尝猜算笑动摸查改练洗擦扫歇躺逛转讲帮陪求谢瞧瞅闻翻收唱跳跑站挑"
    "念背数量称比教管修补晒吹拍拉推敲揉捏握抱哄劝骂打踢压按点选换借商泡煮炒烤浇喂养睡吃喝穿戴用做干办"
)

# words in which 儿 is a syllable of its own
FULL_ER = "^儿|^[女婴幼孤少胎男妻弃患产侄孙乳生育娇健孩小马宠侏乞侍]儿|[生血潮形能产婴]儿$|儿[子童歌科女孙媳]|托儿所"
