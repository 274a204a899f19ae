"""Tables of readings that the dictionaries of pypinyin and jieba lack, as characters and pinyin.

Pinyin is written with v for ü and with the tone at its end; 5 is the neutral tone. `sandhi` works out the tones of 一
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

# characters inside a word that no dictionary has, after its first one: 睡得
INSIDE = {"得": "de5"}

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
    "老头儿": "lao3 tou2 er5",
    "薄薄": "bao2 bao2", "当真": "dang4 zhen1", "似的": "shi4 de5", "差点儿": "cha4 dian3 er5",
}
# fmt: on

# readings by context: (pattern of the text before, pattern of the text after, reading)
CONTEXT = {
    "得": [
        ("[我你他她它们]", "[了到出]", "de2"),
        ("", "了?(?:第[一二三]|[一二三]等奖|满分|高分|冠军|金牌|[零一二三四五六七八九十百]+分|病|感冒)", "de2"),
        ("[我你他她它们咱还都就总必也可非]", "(?![很太多少真不])[一-龥]", "dei3"),
        ("^", "了", "de2"),
        ("[跑说走做写吃长看玩唱来过]", "[很快好慢多高远太真]", "de5"),
    ],
    "地": [("[一-龥][^块片亩的在种耕租买卖有这那两几各本当某此外异产原实]", "(?![上下里面区方块])[一-龥]", "de5")],
    "着": [("[睡找猜点逮摸够用犯][不得]?", "了?$|了", "zhao2")],
    "了": [("[一-龥]不|[吃受走做忘免办付用管到来拿赶跑干]得", "", "liao3")],
    "还": [("[归偿退返要没已得有]", "[给钱书债款贷清你我他她了]", "huan2"), ("", "[给钱书债款贷清]", "huan2")],
    "只": [
        ("[一二两三四五六七八九十百千万几半多]", "", "zhi1"),
        ("[这那每]", "(?![是有要能会好想])", "zhi1"),
    ],
    "为": [
        ("[称分名命视变改译列选评任聘定度高宽积量价数率额温速]", "", "wei2"),
        ("", "[零一二三四五六七八九十两百]", "wei2"),
    ],
    "长": [
        ("[很太多好最更么不]", "(?![大高出得了])", "chang2"),
        ("[又也他她它们]|孩子|个子|头发|胡子|树", "[大高得了出满成胖]", "zhang3"),
    ],
    "行": [("[一二两三四五六七八九十几每这那第单双]", "(?![了吗吧不人])", "hang2")],
    "一行": [("", "[字诗代文泪]", "yi1 hang2")],
    "教": [("", "[我你他她它咱谁书课孩给了过着得唱画弹]|学生|英语|数学|语文|中文", "jiao1")],
    "种": [
        (
            "(?:^|[^一二两三四五六七八九十几多各这那每])",
            "[了着一几两三]?[棵片树花地菜草粮田瓜豆]|[了着]",
            "zhong4",
        ),
        ("[好难播耕栽]", "$", "zhong4"),
    ],
    "干": [("[晒擦吹烘晾风太很]", "", "gan1")],
    "个": [("", "不停|不休|没完|够", "ge5"), ("[是有吃喝看洗打睡找说]", "", "ge5")],
    "老子": [("[孔孟庄荀墨]子[和与跟同]?", "", "lao3 zi3"), ("", "[和与跟同]?[孔孟庄荀墨]子", "lao3 zi3")],
    "数": [("", "[一了]?[数下]|到[零一二三四五六七八九十百几]", "shu3"), ("数[一了]?", "", "shu3")],
    "子": [
        ("[孔孟老庄荀墨韩列曾朱孙原电分质中粒离量光男女弟王公君天太父母亲才学因精卵孝游赤]", "", "zi3"),
        ("", "[女弟孙夜宫]", "zi3"),
    ],
    "重": [("", "[新复建做来写读说装修返]", "chong2")],
    "背": [("", "[着起上了]?[书包]", "bei1")],
    "假": [("[放请休寒暑病事婚产天年月周]", "", "jia4")],
    "倒": [("", "[一了]?[杯碗壶]?[水茶酒车计影立]", "dao4")],
    "空": [("[有没抽得填]", "", "kong4")],
    "量": [("", "[一了]?量|体温|身高|血压", "liang2"), ("量[一了]?", "", "liang2")],
    "切": [("", "", "qie1")],
    "钉": [("", "[在住上好了]", "ding4")],
    "差": [("的", "[是为等]", "cha1")],
    "落": [("把.{1,7}", "[在下]", "la4")],
    "散": [("[很太更松]", "", "san3")],
    "转": [("[绕围].{1,6}", "$|[着动圈]", "zhuan4"), ("", "[着圈]", "zhuan4")],
    "盛": [("", "[一了]?碗?[饭汤水]|满", "cheng2")],
    "系": [("", "[好上紧着]*(?:鞋带|领带|安全带|围巾|扣子)", "ji4")],
    "弹": [("", "[得着了过]?(?:钢琴|吉他|古筝|琵琶|琴|得)", "tan2")],
    "冲": [("", "[着]?[我你他她它]", "chong4")],
    "结": [("", "[了着满出]*(?:果实|果子|满)", "jie1")],
    "闷": [("", "热|得慌", "men1")],
    # of a verb, a particle: it has happened
    "过": [
        (
            "[去来吃看听说做见到学住喝读写讲玩试打坐找教养受拿谈爱骑爬拍唱用游认尝]",
            "(?![来去程度分年河桥马日夜节冬关站头])",
            "guo5",
        )
    ],
}

# words whose second syllable has the neutral tone, whatever dictionaries say
NEUTRAL = frozenset(
    """
    朋友 东西 明白 知道 喜欢 漂亮 衣服 先生 姑娘 清楚 学生 认识 告诉 时候 事情 关系 消息 休息 地方 眼睛 耳朵 葡萄 豆腐
    太阳 月亮 窗户 头发 客气 麻烦 聪明 舒服 热闹 故事 护士 丈夫 妻子 亲戚 生意 行李 力气 脾气 名字 点心 脑袋 指甲 胳膊
    屁股 骆驼 狐狸 苍蝇 蘑菇 石榴 玻璃 棉花 高粱 庄稼 粮食 砖头 风筝 灯笼 扫帚 抽屉 包袱 行当 本事 买卖 打听 打算 打扮
    打量 收拾 商量 招呼 称呼 答应 应酬 张罗 糊涂 老实 厚道 机灵 结实 精神 干净 利索 凉快 亮堂 宽敞 新鲜 痛快 勤快 爽快
    委屈 可怜 稀罕 含糊 马虎 踏实 体面 厉害 自在 别扭 规矩 主意 毛病 疟疾 嘴巴 下巴 巴掌 眉毛 云彩 月饼 烧饼 烟筒 芝麻
    甘蔗 核桃 黄瓜 蚂蚱 刺猬 牲口 畜牲 媳妇 闺女 寡妇 女婿 师傅 师父 徒弟 和尚 尼姑 秀才 状元 财主 少爷 老爷 奴才 裁缝
    木匠 铁匠 石匠 皮匠 队伍 衙门 首饰 胭脂 算盘 簸箕 笤帚 帐篷 门道 窝囊 吓唬 吆喝 嘱咐 吩咐 念叨 唠叨 叨唠 嘀咕 咳嗽
    溜达 动弹 见识 学问 福气 运气 志气 和气 小气 阔气 秀气 牛气 欺负 招牌 交情 冤家 晚上 早上 身上 路上 头上 脸上 桌上
    地上 世上 床上 街上 墙上 家里 心里 屋里 手里 夜里 城里 村里 院里 嘴里 眼里 这里 那里 葫芦 玫瑰 位置 部分 打发 打点
    苗条 篱笆 妥当 稳当 相声 心思 烟囱 养活 冤枉 在乎 扎实 眨巴 栅栏 转悠 祖宗 疏忽 思量 岁数 特务 挑剔 跳蚤 挖苦 娃娃
    喇叭 牢骚 累赘 琉璃 麻利 码头 迷糊 眯缝 名堂 模糊 难为 能耐 娘家 盘算 婆家 铺盖 意思 便宜 暖和 工夫 钥匙 硬朗 大夫
    巴结 扁担 出息 凑合 耷拉 耽搁 耽误 道士 东家 动静 嘟囔 对付 多么 废物 膏药 疙瘩 官司 罐头 蛤蟆 红火 后头 胡琴 伙计
    记号 记性 家伙 架势 嫁妆 将就 叫唤 街坊 姐夫 戒指 口袋 窟窿 快活 懒得 浪头 老婆 里头 利落 例子 痢疾 连累 萝卜 馒头
    忙活 冒失 媒人 木头 那么 牌楼 婆婆 前头 亲家 拳头 人们 上司 上头 舌头 身子 什么 石头 拾掇 使唤 收成 舒坦 算计 唾沫
    尾巴 为了 丫头 哑巴 秧歌 妖精 衣裳 怎么 丈人 折腾 这么 枕头 知识 指头 壮实 字号 作坊 琢磨 爸爸 妈妈 哥哥 弟弟 姐姐
    妹妹 爷爷 奶奶 叔叔 舅舅 姑姑 宝宝 太太 星星 谢谢 火候 活泼
    """.split()
)

# words of them that keep both tones in longer words: 地方性, 自由自在
FULL_IN_COMPOUNDS = ("地方", "东西", "精神", "太阳", "自在", "废物", "地上")
# words that only seem to have one of them in it
FULL_WORDS = ("葡萄牙", "士大夫", "卿大夫", "小气候", "亮堂堂", "辩护士")

# verbs whose second syllable has the neutral tone when they are doubled
REDUPLICATED = frozenset(
    "看想试听说走坐等聊谈玩问找写读学尝猜算笑动摸查改练洗擦扫歇躺逛转讲帮陪求谢瞧瞅闻翻收唱跳跑站挑"
    "念背数量称比教管修补晒吹拍拉推敲揉捏握抱哄劝骂打踢压按点选换借商泡煮炒烤浇喂养睡吃喝穿戴用做干办"
)

# words in which 儿 is a syllable of its own
FULL_ER = "^儿|^[女婴幼孤少胎男妻弃患产侄孙乳生育娇健孩小马宠侏乞侍]儿|[生血潮形能产婴]儿$|儿[子童歌科女孙媳]|托儿所"
